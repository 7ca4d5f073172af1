"""Which sub-layers to leave out, by dynamic programming over hidden states.

CLaSp (arXiv 2505.24196) leaves out a fixed number of layers: of all ways to have skipped j of the first i layers it
keeps the one whose hidden state is nearest, by cosine, to that of the full model after layer i. KnapSpec (arXiv
2602.20217) does the same over attention and MLP sub-layers that weigh what they cost, over several reference
tokens, and chooses how much to skip by the expected time per token.

The best way to layer i need not go on as the best way to layer i + 1, so the result is a good set, not always the
best one; it is the best where what is left out changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from selfspec.control import best_gamma, speedup
from selfspec.joining import concatenate
from selfspec.types import LayerPlan, SubLayer, namespace, on_host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig
    from selfspec.types import Array, Integers, Part

MOST_WEIGHT = 5
"""The largest weight of an item of KnapSpec."""


class Unit(NamedTuple):
    """Sub-layers that are left out together, and what that saves, in whole numbers."""

    steps: tuple[SubLayer, ...]
    weight: int = 1


class Candidate(NamedTuple):
    """A plan that leaves out ``weight``, the states [r, d] it ends with, and their mean cosine to the full ones."""

    weight: int
    plan: LayerPlan
    states: Array
    cosine: float


class _Path(NamedTuple):
    """One way through the layers so far."""

    states: Array
    left_out: tuple[SubLayer, ...]
    cosine: float


def layers_of(num_layers: int) -> list[Unit]:
    """Whole layers: CLaSp's units."""
    return [Unit((SubLayer(i, "attention"), SubLayer(i))) for i in range(num_layers)]


def sub_layers_of(config: ModelConfig, length: int) -> list[Unit]:
    """Attention and MLP sub-layers that weigh what they cost, relative to the lighter: KnapSpec's units.

    The first and the last layer stay.
    """
    costs = part_costs(config, length)
    weights = {part: min(round(cost / min(costs.values())), MOST_WEIGHT) for part, cost in costs.items()}
    return [
        Unit((SubLayer(layer, part),), weights[part]) for layer in range(1, config.num_layers - 1) for part in costs
    ]


def part_costs(config: ModelConfig, length: int) -> dict[Part, int]:
    """Numbers that a row reads in each part of a layer: weights, and the keys and values of ``length`` tokens."""
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    matrices = 2 * config.hidden_size * (heads + kv_heads)
    return {
        "attention": matrices + 2 * length * kv_heads,
        "mlp": max(config.active_layer_parameters - matrices, 1),
    }


def candidates(
    context: Context, text: Text, positions: Integers, units: Sequence[Unit], most: int, least_cosine: float = -1.0
) -> list[Candidate]:
    """For every weight from 0 to ``most`` that can be left out the plan found, by rising weight.

    ``positions`` [r] are those of the reference tokens, committed ones of ``text``. The rows are those of a pass
    over at most (most + 1) · r rows. States whose mean cosine falls below ``least_cosine`` are given up.
    """
    start = context.runtime.embed([text.tokens[p] for p in positions.tolist()], positions)
    unit_of = {step: unit for unit in units for step in unit.steps}
    paths = {0: _Path(start, (), 1.0)}
    for step in context.full.steps:
        unit = unit_of.get(step, Unit((step,), most + 1))  # too heavy: it stays
        if step == unit.steps[0]:
            through = _run(context, text, positions, paths, unit)
            paths = _nearest(through, paths, unit, most, least_cosine)
    return [
        Candidate(weight, LayerPlan.without(context.full.num_layers, path.left_out), path.states, path.cosine)
        for weight, path in sorted(paths.items())
    ]


def _run(
    context: Context, text: Text, positions: Integers, paths: Mapping[int, _Path], unit: Unit
) -> dict[int, Array]:
    """The states of every path after the unit."""
    others = (step for step in context.full.steps if step not in unit.steps)
    plan, count = LayerPlan.without(context.full.num_layers, others), len(positions)
    before = concatenate([path.states for path in paths.values()])
    after, _ = context.replay(plan, text, before, np.tile(positions, len(paths)))
    return {weight: after[i * count : (i + 1) * count] for i, weight in enumerate(paths)}


def _nearest(
    through: Mapping[int, Array], paths: Mapping[int, _Path], unit: Unit, most: int, least_cosine: float
) -> dict[int, _Path]:
    """For each weight the nearer of two: through the unit, or around it from a path that is lighter by it."""
    target, found = through[0], {}
    for weight in sorted({*paths, *(w + unit.weight for w in paths if w + unit.weight <= most)}):
        ways = []
        if weight in paths:
            states = through[weight]
            ways.append(_Path(states, paths[weight].left_out, cosines(states, target)))
        if weight - unit.weight in paths:
            around = paths[weight - unit.weight]
            ways.append(_Path(around.states, (*around.left_out, *unit.steps), cosines(around.states, target)))
        best = max(ways, key=lambda way: way.cosine)
        if weight == 0 or best.cosine >= least_cosine:
            found[weight] = best
    return found


class Choice(NamedTuple):
    """A plan, the draft length that suits it, and the speedup that is expected of both."""

    plan: LayerPlan
    gamma: int
    speedup: float


def fastest(context: Context, found: Sequence[Candidate], length: int, most_gamma: int) -> Choice:
    """The candidate with the least expected time per token, and its best draft length, 0 included.

    α is the share of the r reference tokens on which a candidate and the full model agree, as (n + 1/2) / (r + 1);
    c and f count the numbers that a row reads beside ``length`` tokens; v(T) is the runtime's.
    """
    runtime, config = context.runtime, context.runtime.config
    costs = part_costs(config, length)
    layer, head = sum(costs.values()), config.head_parameters
    total = config.num_layers * layer + head
    v = [runtime.costs.v(rows) for rows in range(1, most_gamma + 2)]
    told = [on_host(runtime.logits(candidate.states)).argmax(axis=1) for candidate in found]
    choices = []
    for candidate, tokens in zip(found, told, strict=True):
        plan = candidate.plan
        alpha = (float((tokens == told[0]).sum()) + 0.5) / (len(tokens) + 1)
        c = (len(plan.attention) * costs["attention"] + len(plan.mlp) * costs["mlp"] + head) / total
        f = plan.shared_prefix * layer / total
        gamma = best_gamma(alpha, c, v, f)
        choices.append(Choice(plan, gamma, speedup(alpha, gamma, c, v, f)))
    return max(choices, key=lambda choice: choice.speedup)


def matchness(context: Context, text: Text, plan: LayerPlan, window: int) -> float:
    """The share of the latest ``window`` tokens of ``text`` that are what ``plan`` holds for the likeliest (SWIFT).

    Each is foretold from the place of the token before it, after the full model's view of the rest: the first
    token of a draft. Places are those of the text, from 1 on; ``window`` rows run aside.
    """
    last = len(text.tokens) - 1
    positions = np.arange(last - window, last)
    tokens = np.asarray(text.tokens[last - window :])
    states, _ = context.replay(plan, text, context.runtime.embed(tokens[:-1].tolist(), positions), positions)
    return float((on_host(context.runtime.logits(states)).argmax(axis=1) == tokens[1:]).mean())


def cosines(states: Array, target: Array) -> float:
    """Mean cosine of the rows [r, d] of two arrays."""
    xp = namespace(states)
    products = xp.sum(states * target, axis=-1)
    norms = xp.sqrt(xp.sum(states * states, axis=-1) * xp.sum(target * target, axis=-1))
    return float(xp.mean(products / norms))
