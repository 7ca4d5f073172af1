"""Results of the verbs themselves, on the tiny model."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from selfspec.measure.certificate import Certificate, Check
from selfspec.reporting.page import report

RATIO = {"median": 1.21, "low": 1.15, "high": 1.26, "pairs": 12, "verdict": "faster"}
HELD = {"weights": 0, "kv": 0, "buffers": {"logits = gamma * V": 1376256}, "bytes": 1376256}


@pytest.fixture(scope="session")
def results(tiny, tmp_path_factory):
    """Files by kind; each was written by the verb, but for what `tune` finds around its profile."""
    folder = tmp_path_factory.mktemp("results")
    data = folder / "data.jsonl"
    rows = [{"task": "a <b>", "turns": ["Hi <script>alert(1)</script>"]}, {"task": "c", "prompt": "Yes?"}]
    data.write_text("\n".join(map(json.dumps, rows)))
    shared = ("--model", tiny, "--data", data, "--ignore-eos")
    quick = ("--budget", "1s", "--contexts", "8", "--temperature", 0, "--check", 1, "--pairs", 1)
    drafts = "ngram:adaptive=false,early_exit:exit_layer=2:gamma=2"
    commands = {
        "bench": ("bench", *shared, "--max-new-tokens", 12, "--repeats", 1, "--drafts", drafts),
        "profile": ("profile", *shared, "--max-new-tokens", 6, "--gamma", 3, *quick),
        "plan": ("plan", tiny, "--memory", "1GB", "--context", "512", "--json"),
    }
    found = {kind: folder / f"{kind}.json" for kind in (*commands, "tune", "certify")}
    for kind, args in commands.items():
        out = () if kind == "plan" else ("--out", found[kind])
        done = run(*args, *out)
        assert done.exit_code == 0, done.output
        if kind == "plan":
            found[kind].write_text(done.stdout)
    found["certify"].write_text(json.dumps(certified(json.loads(found["bench"].read_text()))))
    found["tune"].write_text(json.dumps(tuned(json.loads(found["profile"].read_text()))))
    return found


def run(*args):
    from selfspec.cli.main import cli

    return CliRunner().invoke(cli, [str(arg) for arg in args])


def certified(bench, **failed):
    """A certificate of the model of a benchmark; the checks that certify makes take half a minute."""
    checks = [
        Check("greedy", True, "4 of 4 texts are plain decoding's, token for token", {"texts": 4}),
        Check("coupled", None, "not for this drafter"),
    ]
    subject = {name: bench[name] for name in ("runtime", "precision", "machine")} | {
        "created": "2026-11-30T09:01:24+00:00",
        "model": {"name": bench["model"], "fingerprint": bench["fingerprint"], "config_sha256": "0"},
        "runs_on": "cpu",
        "drafters": [{"label": "ngram γ 7", "name": "ngram", "plan": None, "options": {}}],
        "prompts": {"count": 2, "tokens": 9, "sha256": "0"},
    }
    return Certificate(subject, [replace(check, **failed) for check in checks]).to_dict()


def tuned(profile):
    """A result of `tune`: a profile, and what was chosen."""
    head = {"draft": "suffix:gamma=15", "kind": "suffix", "runs": "none", "expected": 1.1, "tokens_per_round": 1.6}
    held = {"decoding": RATIO, "whole": None, "acceptance_rate": 0.42, "mean_accepted_length": None}
    return {name: value for name, value in profile.items() if name != "units"} | {
        "kind": "tune",
        "format": 1,
        "when": "2026-11-30T10:00:00+00:00",
        "seconds": 12.5,
        "aim": "speed",
        "texts": 1,
        "choice": {"draft": "suffix:gamma=15", "uses_profile": False, "runs": "none", "memory": HELD},
        "pays": True,
        "recommendation": "Draft with suffix:gamma=15: 1.21x of plain decoding.",
        "held_out": {
            "prompts": 3,
            "columns": {
                "suffix:gamma=15": held | {"row_layers_per_token": 4.0, "equal_answers": 3, "answers": 3},
            },
        },
        "contenders": [
            head | {"row_layers_per_token": 4.5, "measured": RATIO, "memory": HELD, "stage": "chosen"},
            head | {"row_layers_per_token": None, "measured": None, "memory": HELD, "stage": "screened"},
            head
            | {
                "expected": None,
                "row_layers_per_token": None,
                "measured": None,
                "memory": HELD,
                "stage": "screened",
            },
        ],
        "tuning_prompts": 6,
        "left_out": {"rounds": "4 of 15 within the budget"},
    }


@pytest.fixture(scope="session")
def whole(results):
    """The page of all results, as HTML."""
    return report(list(map(str, results.values())))[1]


@pytest.fixture(scope="session")
def documents(results):
    """What is in the files, by kind."""
    return {kind: json.loads(path.read_text()) for kind, path in results.items()}
