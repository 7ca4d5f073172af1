"""What a profile tells the controller at the beginning: nothing is probed that is known; others are left out."""

from __future__ import annotations

import json
import platform

import pytest
from simulated import CONFIG, HEAD, LAYERS, SimulatedRuntime, speed

from selfspec import drafters
from selfspec.errors import OptionError


class Host:
    """An engine over a simulated runtime."""

    tokenizer, fingerprint = None, "abc"

    def __init__(self, alpha):
        self.runtime, self.told, self.made = SimulatedRuntime(lambda *_: alpha, 0.15), [], {}

    def notify(self, line):
        self.told.append(line)

    def kept(self, key, make):
        return self.made[key] if key in self.made else self.made.setdefault(key, make())


def written(path, alpha, fingerprint="abc"):
    """A finished profile of that runtime, in the fields of `selfspec profile`."""
    facts = {"fingerprint": fingerprint, "runtime": "simulated", "runs_on": "simulated", "precision": "float64"}
    identity = {**facts, "machine": {"platform": platform.platform(terse=True)}}
    exits = [
        {"exit_layer": k, "c": HEAD + (1 - HEAD) * k / LAYERS, "alpha": alpha, "alpha_by_position": [alpha, None]}
        for k in range(1, LAYERS)
    ]
    passes = [{"context": 128, "seconds": [0.01 * (1 + 0.15 * i) for i in range(8)]}]
    path.write_text(json.dumps({"identity": identity, "units": {}, "passes": passes, "exits": {"0": exits}}))
    return str(path)


def begun(host, rounds, **options):
    """Speed over the first rounds, and how many of them were probes or drafts."""
    made = drafters.create("auto", CONFIG, {"candidates": "early_exit", **options}, host)
    asked = []
    for part in made.parts:
        propose = part.propose
        part.propose = lambda *args, propose=propose: (asked.append(1), propose(*args))[1]
    return speed(host.runtime, made, 10**5, rounds=rounds)[0], len(asked)


def test_what_was_measured_is_not_probed_for(tmp_path):
    """Guards the beginning: good exits draft at once, hopeless ones are not asked, without the file they are."""
    good = written(tmp_path / "good.json", 0.95)
    assert begun(Host(0.95), 5, profile=good)[0] > 1.1 * begun(Host(0.95), 5)[0]
    bad = written(tmp_path / "bad.json", 0.0)
    assert begun(Host(0.0), 60, profile=bad)[1] < begun(Host(0.0), 60)[1]


def test_what_a_profile_says_is_outweighed_by_what_comes(tmp_path):
    """Guards against a belief for ever: a text unlike those of the profile is judged by itself."""
    wrong = written(tmp_path / "wrong.json", 0.95)
    assert begun(Host(0.0), 200, profile=wrong)[0] > 94.0


def test_another_model_is_left_out_and_said_once(tmp_path):
    """Guards staleness: one line, and the controller begins as without a file."""
    host, file = Host(0.95), written(tmp_path / "other.json", 0.95, fingerprint="xyz")
    assert begun(host, 5, profile=file) == begun(Host(0.95), 5)
    begun(host, 5, profile=file)
    assert host.told == [f"the profile {file!r} was measured with another fingerprint; it is left out"]


@pytest.mark.parametrize(
    ("text", "words"), [(None, "cannot be read"), ("{}", "no finished profile"), ("[", "is no")]
)
def test_what_is_no_profile_is_refused(tmp_path, text, words):
    """Guards the user's mistakes: one line, before a text begins."""
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OptionError, match=words):
        begun(Host(0.0), 1, profile=str(path))
