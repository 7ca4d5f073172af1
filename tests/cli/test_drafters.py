"""The list of drafters, and flags that plug-ins bring."""

import json
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

from selfspec import drafters
from selfspec.drafters.base import DraftOptions, option
from selfspec.drafters.plain import Plain


@dataclass(frozen=True)
class EchoOptions(DraftOptions):
    volume: "int | None" = field(default=None, metadata={"help": "How loud."})  # both forms of an annotation
    mood: str = option("calm", "How it sounds.")
    is_odd: bool = option(True, "Whether it is odd.")
    hook: object = None


class Echo(Plain):
    Options = EchoOptions
    name = "echo"
    summary = "a drafter from somewhere else"
    made: ClassVar[list] = []

    def __init__(self, options, config):
        super().__init__(options, config)
        self.made.append(options)


@pytest.fixture
def plugged(monkeypatch):
    """A good plug-in, one that cannot be imported, and one that is no drafter."""
    built_in = list(drafters.available().values())
    values = {"echo": f"{__name__}:Echo", "torn": "no_such_package.torn:Torn", "odd": "json:dumps"}
    extra = [EntryPoint(name, value, drafters.GROUP) for name, value in values.items()]
    monkeypatch.setattr(drafters, "entry_points", lambda group: [*built_in, *extra])


def listing(call):
    result = call("drafters", "--json")
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1
    return {entry["name"]: entry for entry in json.loads(result.stdout)["drafters"]}


def test_the_built_in_drafters_are_listed(call):
    """Guards the entry points and what is told of them."""
    found = listing(call)
    assert {"plain", "early_exit", "ngram", "scripted"} <= set(found)
    options = {entry["flag"]: entry for entry in found["ngram"]["options"]}
    assert options["--max-ngram"]["default"] == 5
    assert all(entry["help"] for entry in options.values())
    assert "script" not in [entry["name"] for entry in found["scripted"]["options"]]
    page = call("drafters").stdout
    assert all(f"{name}: " in page for name in found)
    assert "--exit-layer" in page


@pytest.mark.usefixtures("plugged")
def test_a_broken_plug_in_is_shown_with_its_error(call):
    """Guards the list, and every other verb, against somebody else's bug."""
    found = listing(call)
    assert "No module named 'no_such_package'" in found["torn"]["error"]
    assert "not a selfspec Drafter" in found["odd"]["error"]
    assert found["ngram"]["error"] is None
    assert "torn: BROKEN: " in call("drafters").stdout
    assert call("generate", "--help").exit_code == 0


@pytest.mark.usefixtures("plugged")
def test_choosing_a_broken_plug_in_is_one_line(refused, tiny):
    """Guards against the traceback of an import."""
    line = refused("generate", "hello", "--model", tiny, "--draft", "torn")
    assert "drafter 'torn' cannot be loaded: ModuleNotFoundError" in line


def fresh_generate(monkeypatch):
    """The flags are made once per process: make them again."""
    from selfspec.cli.generate import command

    monkeypatch.delitem(vars(command), "_made", raising=False)


@pytest.mark.usefixtures("plugged")
def test_a_plug_in_brings_its_flags(call, refused, tiny, monkeypatch):
    """Guards the door for plug-ins: every kind of option, its default kept, and its mistakes in one line."""
    fresh_generate(monkeypatch)
    page = call("generate", "--help").stdout
    assert "Drafting with echo:" in page
    assert "--is-odd / --no-is-odd" in page
    assert "--hook" not in page
    Echo.made.clear()
    for flags in ([], ["--volume", "3", "--mood", "loud", "--no-is-odd"]):
        result = call("generate", "hello", "--model", tiny, "--draft", "echo", "--max-new-tokens", "2", *flags)
        assert result.exit_code == 0, result.stderr
    assert list(dict.fromkeys(Echo.made)) == [EchoOptions(), EchoOptions(volume=3, mood="loud", is_odd=False)]
    assert "not a valid integer" in refused("generate", "hello", "--draft", "echo", "--volume", "x")
    assert "'auto' has no --mood; it has --gamma" in refused("generate", "hello", "--mood", "loud")
    fresh_generate(monkeypatch)


def test_two_packages_with_one_name_are_one_line(refused, monkeypatch):
    """Guards a clash of plug-ins, which no choice of ours can settle."""
    clash = [EntryPoint("same", f"{module}:X", drafters.GROUP) for module in ("a", "b")]
    monkeypatch.setattr(drafters, "entry_points", lambda group: clash)
    assert "two drafters are named 'same'" in refused("drafters")
