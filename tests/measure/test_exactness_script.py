"""bench/exactness.py on the embedded model: what it compares, where it goes on, and what it sees."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "exactness.py"


@pytest.mark.embedded
def test_a_run_compares_goes_on_and_sees_another_token(tmp_path, capsys):
    """Guards the script that the 10,000-token figures come from; the last run is the negative control."""
    main = runpy.run_path(str(SCRIPT))["main"]
    wanted = ["--bits", "4", "--laws", "greedy", "--tokens", "8", "--new-tokens", "8", "--threads", "1"]
    wanted += ["--ways", "auto", "plain, 4 at a time, chunks of 7", "--out", str(tmp_path)]

    def results():
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    main(wanted)
    first = results()
    assert [found["way"] for found in first] == ["plain", "plain, 4 at a time, chunks of 7", "auto"]
    assert all(found["tokens"] >= 8 and found["differing_tokens"] == 0 for found in first)
    assert all(found["differing_logits"] == 0 for found in first)
    (journal,) = tmp_path.iterdir()
    lines = journal.read_text()
    main(wanted)
    assert results() == first
    assert journal.read_text() == lines
    *others, last = map(json.loads, lines.splitlines())
    last["tokens"][0] += 1
    journal.write_text("".join(json.dumps(line) + "\n" for line in (*others, last)))
    with pytest.raises(SystemExit) as ended:
        main(wanted)
    assert ended.value.code == 1
    assert results()[-1]["differing_tokens"] == 1
