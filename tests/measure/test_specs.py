"""Columns as they are written on the command line."""

from __future__ import annotations

import pytest

from selfspec.drafters.specs import with_commas
from selfspec.errors import OptionError
from selfspec.measure.rivals import check_rivals
from selfspec.measure.settings import BenchOptions
from selfspec.measure.specs import Spec, draft_specs, pairs_of, parse_specs


def test_a_column_has_a_name_and_typed_options():
    """Guards the spelling, and that values get the types of the drafter's options."""
    from selfspec.drafters.early_exit import EarlyExit

    (spec,) = parse_specs("early_exit:exit_layer=15:confidence=0.5:adaptive=on")
    assert spec.options(EarlyExit.Options) == {"exit_layer": 15, "confidence": 0.5, "adaptive": True}
    assert spec.label == "early_exit:exit_layer=15:confidence=0.5:adaptive=on"


def test_the_baseline_is_always_there_and_first():
    """Guards every ratio: something to divide by, once."""
    assert [spec.label for spec in draft_specs("ngram,plain", "plain")] == ["plain", "ngram"]
    assert [spec.label for spec in draft_specs("ngram", "plain")] == ["plain", "ngram"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gram", "must be one of"),
        ("ngram,ngram", "twice"),
        ("ngram,", "no name"),
        ("ngram:gamma", "name=value"),
        ("ngram:gamma=2:gamma=3", "twice"),
        ("ngram:gama=2", "no option gama; it has gamma"),
        ("ngram:gamma=many", "must be an integer"),
        ("ngram:gamma=99", "it must be 0"),
        ("early_exit:adaptive=maybe", "on or off"),
        ("scripted:script=x", "no option script"),
    ],
)
def test_a_wrong_column_is_refused(text, words):
    """Guards against options that are silently dropped."""
    with pytest.raises(OptionError, match=words):
        draft_specs(text, "plain")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tgi", "must be one of transformers"),
        ("transformers:gamma=4", "it has no options"),
        ("transformers-lookup:gamma=0", "at least 1"),
        ("transformers-early-exit:confidence=2", "0 to 1"),
    ],
)
def test_a_wrong_rival_is_refused(text, words):
    """Guards rivals in the same way."""
    with pytest.raises(OptionError, match=words):
        check_rivals(parse_specs(text))


@pytest.mark.parametrize("value", ["llama.cpp", "llama.cpp=", "lama=/bin/python"])
def test_a_path_needs_a_known_name(value):
    """Guards --rival-python and --rival-model against typing errors that would skip a rival."""
    with pytest.raises(OptionError, match="NAME=PATH"):
        pairs_of([value], "--rival-python", ["llama.cpp"])
    assert pairs_of(["llama.cpp=/a=b"], "--rival-python", ["llama.cpp"]) == {"llama.cpp": "/a=b"}


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": "0,0"},
        {"temperature": "-1"},
        {"temperature": "nan"},
        {"temperature": ""},
        {"repeats": 0},
        {"limit": 0},
        {"max_new_tokens": 0},
        {"seed": -1},
        {"repeats": 1.5},
    ],
)
def test_settings_are_checked(options):
    """Guards a long run against a value that makes no sense."""
    with pytest.raises(OptionError, match="it must be"):
        BenchOptions(**options)


def test_a_value_in_parentheses_may_have_commas_and_colons():
    """Guards candidates with options of their own; elsewhere parentheses belong to the name of a file."""
    from selfspec.drafters.auto import Auto

    label = "auto:candidates=(suffix,quantized:draft_bits=4):gamma=5"
    first, second = parse_specs(f"plain,{label}")
    assert (first.label, second.label) == ("plain", label)
    assert second.options(Auto.Options) == {"candidates": "suffix,quantized:draft_bits=4", "gamma": 5}
    assert [spec.given for spec in parse_specs("a:file=x(1).txt,b:file=y")] == [
        (("file", "x(1).txt"),),
        (("file", "y"),),
    ]


def test_a_plus_joins_entries_only_before_a_name():
    """Guards files with a + in their name among the candidates of auto."""
    names = ["suffix", "ngram"]
    assert with_commas("suffix+ngram:gamma=2+suffix", names) == "suffix,ngram:gamma=2,suffix"
    for alone in ("suffix:corpus=c++.txt", "suffix:corpus=a+suffixes.txt", "suffix:corpus=a+ngrams"):
        assert with_commas(alone, names) == alone


def test_an_empty_list_is_no_column():
    """Guards the default of --rivals."""
    assert parse_specs(" ") == []
    assert Spec("plain").label == "plain"
