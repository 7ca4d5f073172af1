"""What every way to leave out inner sub-layers of the trained model is worth: tried exhaustively, not searched."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
import trained_decoder as trained
from doubles import run

from selfspec.context import Context, Text
from selfspec.control import best_gamma, speedup
from selfspec.sampling import Chance
from selfspec.types import LayerPlan, Sampling, SubLayer

SAMPLING = Sampling(1.0)
PROMPTS = [(3, 5, 1, 2), (1, 2, 3, 4)]
NEW = 60
HEAD = 0.5  # what the head costs, in layers: a sub-layer costs half a one
GAMMA = 8
V = tuple(1.0 + 0.05 * i for i in range(GAMMA + 1))  # v(T)
ROWS = 2048  # of a pass
INNER = [SubLayer(i, part) for i in range(1, trained.LAYERS - 1) for part in ("attention", "mlp")]
OUTER = [SubLayer(i, part) for i in (0, trained.LAYERS - 1) for part in ("attention", "mlp")]


class Worth(NamedTuple):
    """A plan, its acceptance rate, and the speedup by the cost model with the best draft length from 1 on."""

    plan: LayerPlan
    alpha: float
    speedup: float


class Truth:
    """Acceptance rates [2 ** 12] of the sets of inner sub-layers, by the bits of their places in `INNER`.

    ``drawn``: of drafts that are drawn, 1 - the total variation between draft and target; ``likeliest``: of those
    that take the likeliest token, the target's probability of it.
    """

    def __init__(self, drawn, likeliest):
        self.alphas = {"drawn": drawn, "likeliest": likeliest}

    def worth(self, plan, kind="drawn"):
        """What a plan gains where costs are row-layers."""
        index = sum(1 << i for i, step in enumerate(INNER) if step in set(plan.left_out))
        alpha = float(self.alphas[kind][index])
        whole = plan.num_layers + HEAD
        c, f = (plan.row_layers + HEAD) / whole, plan.shared_prefix / whole
        gamma = max(1, best_gamma(alpha, c, V, f))
        return Worth(plan, alpha, speedup(alpha, gamma, c, V, f))

    def of_size(self, count, kind="drawn"):
        """Every set of ``count`` inner sub-layers, most worth first."""
        plans = [LayerPlan.without(trained.LAYERS, out) for out in combinations(INNER, count)]
        return sorted((self.worth(plan, kind) for plan in plans), key=lambda worth: -worth.speedup)

    def best(self):
        """The best of all 2 ** 16 sets. The outer layers add nothing: a shared prefix is all that they give.

        Of sets with the same cost only the one with the highest acceptance rate can be it.
        """
        likely = {}
        for index in np.argsort(self.alphas["drawn"]).tolist()[:-1]:  # the last is the full model's
            inner = [step for i, step in enumerate(INNER) if index >> i & 1]
            likely[len(inner), inner[0].layer] = inner
        plans = [
            LayerPlan.without(trained.LAYERS, [*inner, *outer])
            for inner in likely.values()
            for outer in (OUTER, OUTER[2:], ())
            if len(inner) + len(outer) < 2 * trained.LAYERS
        ]
        return max(map(self.worth, plans), key=lambda worth: worth.speedup)

    def of_layers(self, count, kind="drawn"):
        """Every set of ``count`` whole inner layers, most worth first."""
        sets = combinations(range(1, trained.LAYERS - 1), count)
        plans = [LayerPlan.skipping(trained.LAYERS, out, out) for out in sets]
        return sorted((self.worth(plan, kind) for plan in plans), key=lambda worth: -worth.speedup)


def answers(runtime):
    """The model's own texts, prompts included."""
    return [
        run(runtime, [prompt], new_tokens=NEW, sampling=SAMPLING, seed=i)[0].tokens
        for i, prompt in enumerate(PROMPTS)
    ]


def truth(runtime):
    """The acceptance rates of all sets at all places of the answers."""
    found = [acceptance(runtime, tokens, len(PROMPTS[0])) for tokens in answers(runtime)]
    return Truth(*np.mean(found, axis=0))


def opened(runtime, tokens, prompt_length, room=ROWS):
    """A text that was written up to its pending token."""
    context = Context(runtime, runtime.new_cache(1, len(tokens) + room), room)
    text = Text(0, 0, list(tokens[:prompt_length]), len(tokens) + room, SAMPLING, Chance(0), lambda _: False)
    text.tokens += tokens[prompt_length:]
    context.write(0, tokens[:-1])
    text.cached = len(tokens) - 1
    return context, text


def acceptance(runtime, tokens, prompt_length):
    """Both rates of all sets [2, 2 ** 12], mean over an answer.

    All sets at once: after each sub-layer there are the states of all ways to have come there, and each goes on
    through the next and around it. The outer layers add nothing, and are not run.
    """
    context, text = opened(runtime, tokens, prompt_length)
    positions = np.arange(prompt_length, len(tokens) - 1)
    states = runtime.embed([tokens[p] for p in positions], positions)
    for i, step in enumerate(INNER):
        only = LayerPlan.without(trained.LAYERS, [other for other in context.full.steps if other != step])
        through, _ = context.replay(only, text, states, np.tile(positions, 1 << i))
        states = torch.cat([through, states])
    laws = probabilities(runtime, states).reshape(1 << len(INNER), len(positions), -1)
    return rates(laws[0], laws)


def rates(target, drafts):
    """Acceptance of drafts [..., R, V], drawn and likeliest, where the target has [R, V]; mean over the rows."""
    told = np.take_along_axis(target, drafts.argmax(axis=-1).T.reshape(len(target), -1), axis=1)
    drawn = np.minimum(drafts, target).sum(axis=-1).mean(axis=-1)
    return drawn, told.mean(axis=0).reshape(drawn.shape)


def probabilities(runtime, states):
    """Of each row [R, V], by definition, at temperature 1."""
    logits = np.asarray(runtime.logits(states), np.float64)
    masses = np.exp(logits - logits.max(axis=1, keepdims=True))
    return masses / masses.sum(axis=1, keepdims=True)
