"""A world of known costs and acceptance: a runtime whose passes move a clock, and drafts of known quality.

The target's token at a place is a fixed function of the place, and so is whether an exit, or a look-up, is right
there: with the chance that a function of place and layer gives.
"""

from __future__ import annotations

import numpy as np

from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.decode import Loop
from selfspec.measure.toy import MarkovCache
from selfspec.model.config import ModelConfig
from selfspec.runtime.base import Runtime
from selfspec.sampling import Chance
from selfspec.types import Sampling

SIZE, LAYERS, LOOK = 16, 16, 999
CONFIG = ModelConfig(
    family="llama",
    num_layers=LAYERS,
    hidden_size=2,
    intermediate_size=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=1,
    vocab_size=SIZE,
    context_length=10**6,
    dtype="float64",
)

HEAD = CONFIG.head_parameters / (CONFIG.head_parameters + LAYERS * CONFIG.layer_parameters)  # of the time of a pass


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def known(place, salt):
    """A number in [0, 1) that belongs to a place."""
    return (hash((place * 2654435761 + 12345, salt * 40503 + 7)) % 1000003) / 1000003


def right_token(place):
    return int(known(place, 1) * SIZE)


def said(place, chance, salt):
    """What somebody says there who is right with that chance."""
    token = right_token(place)
    return token if known(place, 100 + salt) < chance else (token + 1) % SIZE


class SimulatedRuntime(Runtime):
    """``alpha(place, layer)`` is how often an exit is right.

    A pass of one row takes ``load(place)`` times 10 ms, of which the head has a share of HEAD; every further row
    takes ``slope`` of that.
    """

    name, precision, value_bytes = "simulated", "float64", 8

    def __init__(self, alpha, slope=0.1, load=lambda _: 1.0):
        self.config, self.clock = CONFIG, Clock()
        self.alpha, self.slope, self.load = alpha, slope, load

    def _takes(self, share, rows):
        place = self.place
        cost = 1.0 + self.slope * (rows - 1)
        self.clock.now += 0.01 * share * cost * self.load(place)

    def embed(self, tokens, positions=None):
        hidden = np.zeros((len(tokens), 2))
        hidden[:, 0] = positions
        self.place = int(max(positions))
        return hidden

    def run(self, hidden, plan, rows, cache, taps=()):
        self.place = int(hidden[:, 0].max())
        hidden = hidden.copy()
        self._takes((1.0 - HEAD) * plan.row_layers / LAYERS, len(hidden))
        tapped = {tap: hidden.copy() for tap in taps}
        for tap, states in tapped.items():
            states[:, 1] = tap.layer + 1
        hidden[:, 1] = max(step.layer for step in plan.steps) + 1
        return hidden, tapped

    def logits(self, hidden):
        self._takes(HEAD, len(hidden))
        logits = np.zeros((len(hidden), SIZE))
        for row, (place, layer) in enumerate(hidden.astype(int).tolist()):
            chance = 1.0 if layer == LAYERS else self.alpha(place, layer)
            logits[row, said(place + 1, chance, layer)] = 5.0
        return logits

    def new_cache(self, slots, length):
        return MarkovCache(slots, length)

    def keep(self, cache, rows):
        pass


def look_up(chance):
    """A script that is right with ``chance(place)``; it costs no time."""
    return lambda tokens, gamma: [
        said(place, chance(place), LOOK) for place in range(len(tokens), len(tokens) + gamma)
    ]


def speed(runtime, drafter, tokens, texts=1, rounds=None, start=1):
    """Tokens per second, row-layers per token ÷ layers, and rounds, after the prefill of a fresh loop.

    Texts begin at places of their own, so that drafts are not right or wrong in all of them at once.
    """
    context = Context(runtime, runtime.new_cache(texts, 10**6))
    starts = [start + 1001 * i for i in range(texts)]
    made = [Text(i, i, [0] * s, s + tokens, Sampling(), Chance(i), lambda _: False) for i, s in enumerate(starts)]
    loop = Loop(context, runtime.clock)
    loop.add(made, drafter)
    began, layers, count = runtime.clock.now, sum(context.row_layers), 0
    while loop.texts and (rounds is None or count < rounds):
        loop.turn()
        count += 1
    loop.close()
    new = sum(len(text.tokens) - first - 1 for text, first in zip(made, starts, strict=True))
    for text, first in zip(made, starts, strict=True):
        assert text.error is None, text.error
        assert text.tokens[first:] == [right_token(place) for place in range(first, len(text.tokens))]
    return new / (runtime.clock.now - began), (sum(context.row_layers) - layers) / (new * LAYERS), count


def fixed(alpha, load, slope, look, tokens, kind, layer, gamma):
    """Tokens per second of one drafter with one γ, by the same costs, without the loop."""
    place, seconds, f = 2, 0.0, (1.0 - HEAD) * layer / LAYERS
    while place < 2 + tokens:
        held = 0
        for i in range(gamma):
            chance, salt = (look(place + i), LOOK) if kind == "look" else (alpha(place + i - 1, layer), layer)
            if known(place + i, 100 + salt) >= chance:
                break
            held += 1
        rows = 1.0 + slope * gamma
        takes = rows if kind == "look" else gamma * (f + HEAD) + f + (1.0 - f) * rows
        seconds += 0.01 * load(place + gamma) * takes
        place += held + 1
    return (place - 2) / seconds


def best_fixed(alpha, load, slope, look, tokens):
    """Of plain decoding, all exits that `auto` tries, and the look-up, with many γ."""
    gammas = (1, 2, 3, 4, 5, 7)
    kinds = [("look", 0, 0)] + [("look", 0, gamma) for gamma in gammas]
    kinds += [("exit", layer, gamma) for layer in (2, 4, 8) for gamma in gammas]
    return max(fixed(alpha, load, slope, look, tokens, *kind) for kind in kinds)


def auto(script=None, **options):
    """The controller, with a scripted look-up as its free candidate where one is given."""
    if script is not None:
        scripted = drafters.create("scripted", CONFIG, {"script": script, "gamma": options.get("gamma", 7)})
        options["candidates"] = (scripted, *options.get("candidates", ("early_exit",)))
    return drafters.create("auto", CONFIG, options)
