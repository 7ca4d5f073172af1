"""Asks a script that runs in the Python of another engine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import selfspec


def ask(variable, script, **asked):
    """What ``script`` answers in the Python that the environment variable names; it must be set."""
    python = os.environ.get(variable)
    assert python, f"{variable} must name the Python that has the engine; see the top of the file"
    sources = str(Path(selfspec.__file__).parents[1])
    done = subprocess.run(
        [python, str(Path(__file__).with_name(script))],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": sources},
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert answers, done.stderr[-3000:]
    return json.loads(answers[0].removeprefix("ANSWER "))
