"""Recorded greedy answers on a clock of measured costs: what a drafter gains, whatever else the machine does.

`data/answers.jsonl` has an answer of SmolLM2-135M in bf16 to a built-in prompt of each task, tokens renumbered;
``agrees[i]`` is how many tokens a draft of the same model in 4 bits has right that begins at token i + 1 of the
answer, at most 7, and ``exits`` where exits after 3, 7 and 15 of 30 layers are right. Costs are those of
docs/log.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.decode import Loop
from selfspec.drafters.base import Drafter, DraftOptions
from selfspec.drafters.suffix import Suffix
from selfspec.measure.toy import MarkovCache
from selfspec.model.config import ModelConfig
from selfspec.runtime.base import Runtime
from selfspec.sampling import Chance
from selfspec.types import Draft, Sampling

LAYERS, HEAD, SIZE = 30, 0.2, 400
WRONG = SIZE - 1
EXITS = {3: 0, 7: 1, 15: 2}
# bits: seconds of a pass, and v at 1, 2, 4, 8 and 16 rows
COSTS = {
    16: (0.0115, (1.0, 1.07, 1.24, 1.5, 2.6)),
    8: (0.0076, (1.0, 1.11, 1.30, 1.82, 3.4)),
    4: (0.0060, (1.0, 1.13, 1.40, 2.36, 4.6)),
}
LOOK_UP = 60e-6  # seconds
STEP = 0.3  # of a pass in 16 bits: one in 4 bits
CONFIG = ModelConfig(
    family="llama",
    num_layers=LAYERS,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=SIZE,
    context_length=10**6,
    dtype="float64",
)


def answers():
    """All of them."""
    lines = (Path(__file__).parent / "data" / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


class Replay(Runtime):
    """Says what was recorded, in passes that take what was measured; as a host it keeps what is learned."""

    name, precision, value_bytes = "replay", "float64", 8
    tokenizer, fingerprint = None, ""

    def __init__(self, bits):
        self.config = CONFIG
        self.a_pass, self._v = COSTS[bits]
        self.now = 0.0
        self.answer = None
        self._kept = {}

    @property
    def runtime(self):
        return self

    def kept(self, key, make):
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def clock(self):
        return self.now

    def _takes(self, share, rows):
        self.now += self.a_pass * share * float(np.interp(rows, (1, 2, 4, 8, 16), self._v))

    def embed(self, tokens, positions=None):
        hidden = np.zeros((len(tokens), 2))
        hidden[:, 0] = positions
        return hidden

    def run(self, hidden, plan, rows, cache, taps=()):
        hidden = hidden.copy()
        hidden[:, 1] = max(step.layer for step in plan.steps) + 1
        self._takes((1.0 - HEAD) * plan.row_layers / LAYERS, len(hidden))
        return hidden, {}

    def logits(self, hidden):
        self._takes(HEAD, len(hidden))
        logits = np.zeros((len(hidden), SIZE))
        for row, (place, layer) in enumerate(hidden.astype(int).tolist()):
            logits[row, self._said(place + 1, layer)] = 5.0
        return logits

    def _said(self, place, layer):
        prompt, answer = self.answer["prompt"], self.answer["answer"]
        if place < len(prompt):
            return prompt[place]
        place -= len(prompt)
        is_known = place < len(answer) and (layer == LAYERS or self.answer["exits"][EXITS[layer]][place] == "1")
        return answer[place] if is_known else WRONG

    def new_cache(self, slots, length):
        return MarkovCache(slots, length)

    def keep(self, cache, rows):
        pass


class Timed(Suffix):
    """Look-up that takes time."""

    def __init__(self, replay):
        super().__init__(Suffix.Options(), CONFIG)
        self._replay = replay

    def propose(self, context, texts, gammas):
        self._replay.now += LOOK_UP * len(texts)
        return super().propose(context, texts, gammas)


class Lighter(Drafter):
    """What the model in 4 bits said, as `quantized` would."""

    name, summary, usual_alpha, step_share = "lighter", "", 0.7, STEP

    def __init__(self, replay, gamma):
        super().__init__(DraftOptions(gamma=gamma), CONFIG)
        self._replay = replay

    def propose(self, context, texts, gammas):
        return [self._draft(text, gamma) for text, gamma in zip(texts, gammas, strict=True)]

    def _draft(self, text, gamma):
        answer, at = self._replay.answer, len(text.tokens) - len(self._replay.answer["prompt"])
        self._replay.now += gamma * STEP * self._replay.a_pass
        held = min(int(answer["agrees"][at - 1]), gamma)
        return Draft((*answer["answer"][at : at + held], *[WRONG] * (gamma - held)))


def make(replay, name):
    """A drafter: suffix, lighter with a γ, or auto with its candidates."""
    kind, _, rest = name.partition(":")
    if kind == "suffix":
        return Timed(replay)
    if kind == "lighter":
        return Lighter(replay, int(rest))
    candidates = [part if part == "early_exit" else make(replay, part) for part in rest.split(",")]
    made = drafters.create("auto", CONFIG, {"candidates": candidates})
    made.bind(replay)
    return made


def gains(bits, name, repeats=2, prediction=None):
    """S by task in the last of ``repeats`` rounds over all answers, by an engine that keeps what it learns."""
    replay, found = Replay(bits), {}
    for answer in answers() * repeats:
        replay.answer = answer
        prompt, tokens = answer["prompt"], [*answer["prompt"], *answer["answer"]]
        text = Text(0, 0, [*prompt], len(tokens), Sampling(), Chance(0), lambda _: False)
        text.prediction = prediction(answer["answer"]) if prediction else ()
        loop = Loop(Context(replay, replay.new_cache(1, 10**6)), replay.clock)
        loop.add([text], make(replay, name))
        began = replay.now
        while loop.texts:
            loop.turn()
        assert text.error is None, text.error
        assert text.tokens == tokens
        found[answer["task"]] = (len(answer["answer"]) - 1) * replay.a_pass / (replay.now - began)
    return found
