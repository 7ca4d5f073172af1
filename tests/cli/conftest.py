"""The command line in this process and in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

SRC = Path(__file__).parents[2] / "src"
# A background shell starts its children with SIGINT ignored, and Python keeps that: undo it.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from selfspec.cli.main import run; run()"
)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def call():
    """Run the command line in this process; gives click's result."""
    from selfspec.cli.main import cli

    def run(*args, text=None):
        return CliRunner().invoke(cli, [str(arg) for arg in args], input=text)

    return run


@pytest.fixture
def refused(call):
    """Run what must fail; gives the one line of the error after checking how it was reported."""

    def run(*args, text=None):
        result = call(*args, text=text)
        assert isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == 2
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("selfspec: error: ")
        return lines[0]

    return run


@pytest.fixture
def spawn():
    """Start the command line as a process of its own; whatever is left is killed after the test."""
    started = []

    def start(*args, **pipes):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes
        environment = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PROGRAM, *map(str, args)]
        started.append(subprocess.Popen(command, env=environment, bufsize=0, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()


@pytest.fixture
def data(tmp_path):
    """Two short tasks."""
    path = tmp_path / "data.jsonl"
    rows = [{"task": "a", "turns": ["Hi", "Ho"]}, {"task": "b", "prompt": "Yes?"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path
