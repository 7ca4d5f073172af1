"""Early exits with a draft vocabulary and no head: what they draft, and where vocabulary and layer come from."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from doubles import TINY, Host, run, tiny_core, tiny_runtime

from selfspec import drafters
from selfspec.drafters.early_exit import EarlyExit
from selfspec.drafters.trimmed_exit import TrimmedExit, read_vocabulary
from selfspec.errors import OptionError
from selfspec.model.config import Exits, Layer

PROMPTS = [[5, 17, 3, 3, 42, 5, 17], [1], [9, 9, 9, 9, 2]]


@pytest.fixture
def tokens_of(tmp_path):
    """A file with these ids."""

    def write(ids):
        path = tmp_path / "tokens.json"
        path.write_text(json.dumps(ids))
        return str(path)

    return write


def drafted(runtime, options):
    """All drafts of a run: after which tokens, and which."""
    drafter = drafters.create(
        "early_exit", runtime.config, {"exit_layer": 4, "gamma": 3, **options}, Host(runtime, {})
    )
    made, propose = [], drafter.propose

    def note(context, texts, gammas):
        found = propose(context, texts, gammas)
        made.extend((tuple(text.tokens), draft.tokens) for text, draft in zip(texts, found, strict=True))
        return found

    drafter.propose = note
    run(runtime, PROMPTS, drafter, new_tokens=16)
    return drafter, made


@pytest.mark.parametrize("made", [tiny_runtime, lambda: tiny_core("fp32"), lambda: tiny_core("int8")])
def test_with_all_tokens_it_is_the_exit_itself(made, tokens_of):
    """Guards norm, rows and states on both runtimes, against the exit with the model's whole head."""
    runtime = made()
    bits = {"head_bits": 32} if runtime.name == "cpu" and runtime.precision == "float32" else {}
    ours, drafts = drafted(runtime, {"draft_vocabulary": tokens_of(list(range(61))), **bits})
    theirs, expected = drafted(runtime, {})
    assert isinstance(ours, TrimmedExit)
    assert isinstance(theirs, EarlyExit)
    assert drafts == expected
    assert any(draft for _, draft in drafts)
    assert ours.step_share < 1.0


def test_only_its_tokens_are_drafted(tokens_of):
    ours, drafts = drafted(tiny_runtime(), {"draft_vocabulary": tokens_of([7, 3, 42])})
    said = {token for _, draft in drafts for token in draft}
    assert said
    assert said <= {3, 7, 42}
    assert "3 tokens" in ours.runs
    assert ours.extra_bytes.weights > 0


def test_exits_that_are_noted_are_the_default(tokens_of):
    """Guards exits.json: layer and vocabulary, each unless it is named."""
    config = replace(TINY, exits=Exits((3, 1), (2, 5, 60)))
    made = drafters.create("early_exit", config, {})
    assert isinstance(made, TrimmedExit)
    assert (made.plan.row_layers, made.runs.rpartition(" + ")[2]) == (3, "3 tokens")
    assert drafters.create("early_exit", config, {"exit_layer": 2}).plan.row_layers == 2
    whole = drafters.create("early_exit", config, {"draft_vocabulary": "all"})
    assert isinstance(whole, EarlyExit)
    assert whole.plan.row_layers == 3
    other = drafters.create("early_exit", config, {"draft_vocabulary": tokens_of([1, 4])})
    assert other.runs.endswith("2 tokens")
    assert EarlyExit.variants(config, {}) == [{"exit_layer": 1}, {"exit_layer": 3}]
    plain = drafters.create("early_exit", replace(TINY, exits=Exits((3,))), {})
    assert isinstance(plain, EarlyExit)
    assert plain.plan.row_layers == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exit_layer": "adaptive"}, "which exit_layer=adaptive does not read"),
        ({"head": "x.safetensors"}, "which a trained head does not read"),
        ({"exit_layer": 7}, "7"),
    ],
)
def test_options_that_exclude_each_other(tokens_of, options, said):
    with pytest.raises(OptionError, match=said):
        drafters.create("early_exit", TINY, {"draft_vocabulary": tokens_of([1, 2]), **options})


@pytest.mark.parametrize("found", ["[]", "[1, -2]", "[1.5]", "[true]", '{"ids": [1]}', "7", "{", ""])
def test_files_that_hold_no_vocabulary(tmp_path, found):
    path = tmp_path / "tokens.json"
    path.write_text(found)
    with pytest.raises(OptionError, match="draft_vocabulary"):
        read_vocabulary(str(path))


def test_models_that_it_does_not_fit(tokens_of):
    few = tokens_of([1, 61])
    with pytest.raises(OptionError, match="drafts 62 tokens and this model has 61"):
        drafters.create("early_exit", TINY, {"draft_vocabulary": few})
    with pytest.raises(OptionError, match="norms of the kind layer"):
        drafters.create("early_exit", replace(TINY, layers=(Layer(norm="layer"),)), {"draft_vocabulary": few})
