"""Ways of decoding that no draft can be verified against are refused by name, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

import selfspec
from selfspec import drafters
from selfspec.drafters import available, drafter_class, option_names
from selfspec.drafters.base import option
from selfspec.drafters.ngram import Ngram, NgramOptions
from selfspec.errors import OptionError
from selfspec.modes import refuse_unverifiable, unverifiable
from selfspec.request import Request

MODES = [
    ("num_beams", 4, "beam search ranks several whole texts"),
    ("num_return_sequences", 2, "give the prompt to batch several times"),
    ("penalty_alpha", 0.6, "contrastive search compares the hidden states"),
    ("dola_layers", "high", "the logits of late and early layers"),
    ("guidance_scale", 1.5, "the logits of two prompts"),
    ("posterior_threshold", 0.09, "verification here is exact"),
    ("assistant_ensemble_weight", 0.5, "verification here is exact"),
    ("assistant_model", "x", "draft='draft_model'"),
]


@pytest.mark.parametrize(("name", "value", "why"), MODES)
def test_a_mode_is_refused_with_its_reason(tiny, name, value, why):
    """Guards against running it undrafted, or ignoring it; at load, in a request, in a batch."""
    engine = selfspec.load(tiny)
    for ask in (
        lambda: selfspec.load(tiny, **{name: value}),
        lambda: engine.stream("hi", **{name: value}),
        lambda: engine.batch(["hi"], **{name: value}),
    ):
        with pytest.raises(OptionError, match=why) as caught:
            ask()
        assert str(caught.value).startswith(f"{name} is not offered: ")
        assert "\n" not in str(caught.value)
    (_, result), *_ = engine.batch([{"prompt": "hi", name: value}])
    assert why in str(result)


def test_an_option_of_a_plug_in_may_have_such_a_name(tiny):
    """Guards drafters of others: only what nobody knows is refused."""

    @dataclass(frozen=True)
    class Options(NgramOptions):
        constraints: int = option(3, "Its own.")

    kind = type("Own", (Ngram,), {"Options": Options, "name": "own"})
    made = drafters.create(kind, selfspec.load(tiny).config, {"constraints": 2})
    assert made.options.constraints == 2


def test_names_of_ours_are_never_refused():
    """Guards the list: it must not take an option away."""
    ours = {field.name for field in fields(Request)}
    ours |= {name for drafter in available() for name in option_names(drafter_class(drafter))}
    assert not ours & set(unverifiable())
    refuse_unverifiable(ours)
