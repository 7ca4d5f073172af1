"""bench/task_prompts.py: prompts about texts that a model has written."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
from click.testing import CliRunner

import selfspec
from selfspec.train.shards import Text, write_shard

SCRIPT = Path(__file__).parents[2] / "bench" / "task_prompts.py"


def test_prompts_are_about_the_answers_and_a_seed_gives_the_same(tiny, tmp_path):
    """Guards the script that the prompts of the first head came from: passages are answers, short ones are left."""
    main = runpy.run_path(str(SCRIPT))["main"]
    engine = selfspec.load(tiny)
    described = {
        "format": 1, "model": {"name": engine.name, "fingerprint": engine.fingerprint},
        "vocab_size": engine.config.vocab_size, "eos_token_ids": [257], "special_ids": [256, 257, 258],
        "temperatures": [0.0],
    }  # fmt: skip
    (tmp_path / "data.json").write_text(json.dumps(described))
    tokens = [engine.tokenizer.encode(text) for text in ("ab", "The river is long, and its water is cold.")]
    arguments = [
        "--data",
        str(tmp_path),
        "--model",
        str(tiny),
        "--out",
        str(tmp_path / "out.jsonl"),
        "--count",
        "9",
    ]

    def asked():
        done = CliRunner().invoke(main, arguments)
        return done, (tmp_path / "out.jsonl").read_text() if done.exit_code == 0 else None

    write_shard(tmp_path, [Text(np.asarray([1, *tokens[0]], np.int32), 1, 0.0, 0)])
    done, _ = asked()
    assert done.exit_code == 2
    assert "no answer of 20 tokens or more" in done.output
    write_shard(tmp_path, [Text(np.asarray([1, *own], np.int32), 1, 0.0, n) for n, own in enumerate(tokens)])
    done, found = asked()
    prompts = [json.loads(line)["prompt"] for line in found.splitlines()]
    assert len(prompts) == 9
    assert all("The river is long, and its water is cold." in prompt for prompt in prompts)
    assert asked()[1] == found
