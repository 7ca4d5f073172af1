"""What drafts by certain layers say along the target's own answers, and how sure they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.context import Context, Text
from selfspec.measure.agreement import measure_agreement, ratio
from selfspec.measure.recorded import Voice
from selfspec.sampling import Chance, distribution, top_probability
from selfspec.types import Prefix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.engine import Engine
    from selfspec.types import LayerPlan, Sampling

_ROWS = 64  # of one pass with logits
_DIGITS = 4


def of_exits(
    engine: Engine, prompt: Sequence[int], answer: Sequence[int], exits: Sequence[int], sampling: Sampling
) -> dict[str, Any]:
    """By exit layer: q(x) / p(x) at each token x of the answer, and the confidence there; JSON-ready."""
    found = measure_agreement(engine.runtime, prompt, answer, exits, sampling, is_confidence_asked=True)
    assert found.confidences is not None
    return {
        str(k): _kept(ratios, confidences)
        for k, ratios, confidences in zip(exits, found.ratios, found.confidences, strict=True)
    }


def of_plan(
    engine: Engine, prompt: Sequence[int], answer: Sequence[int], plan: LayerPlan, sampling: Sampling
) -> dict[str, Any]:
    """The same of any plan, whose rows run aside: right for the first token of a draft (`Context.replay`)."""
    runtime, tokens = engine.runtime, [*prompt, *answer]
    context = Context(runtime, runtime.new_cache(1, len(tokens) + _ROWS))
    text = Text(0, 0, tokens, len(tokens) + _ROWS, sampling, Chance(0), lambda _: False)
    context.write(0, tokens[:-1])
    ratios, confidences = [0.0], [0.0]  # no draft proposes the first token of an answer
    places = np.arange(len(prompt), len(tokens) - 1)
    for start in range(0, len(places), _ROWS):
        at = places[start : start + _ROWS]
        laws = {}
        for name, own in (("target", context.full), ("draft", plan)):
            hidden = runtime.embed([tokens[place] for place in at.tolist()], at)
            laws[name] = runtime.logits(context.replay(own, text, hidden, at)[0])
        for place, target, draft in zip(at.tolist(), laws["target"], laws["draft"], strict=True):
            prefix = Prefix(tokens[: place + 1], len(prompt))
            p, q = (distribution(logits, sampling, prefix) for logits in (target, draft))
            ratios.append(ratio(p, q, tokens[place + 1]))
            confidences.append(top_probability(draft))
    return _kept(ratios, confidences)


def _kept(ratios: Any, confidences: Any) -> dict[str, Any]:
    return {
        "ratios": np.round(ratios, _DIGITS).tolist(),
        "confidences": np.round(confidences, _DIGITS).tolist(),
    }


def voice_of(kept: Mapping[str, Any], seed: Sequence[int]) -> Voice:
    """Whether a draft token holds at each place: it does with probability min(1, q(x) / p(x)), drawn once.

    In greedy decoding ratios are 1 or 0, and nothing is drawn.
    """
    drawn = np.random.default_rng(list(seed)).random(len(kept["ratios"]))
    return Voice((drawn < np.asarray(kept["ratios"])).tolist(), kept["confidences"])
