"""The cells of the table of losslessness: which there are, and what must hold in each.

A cell is one random choice of how many texts run together, their lengths and ends, γ, the temperature, and what
shapes the probabilities.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from constraints import PROCESSORS, settings, some
from doubles import run
from lossless_table import (
    AHEAD,
    CONTROLLERS,
    DRAFTERS,
    HEAD_CONTROLLERS,
    LIGHTER,
    MOST,
    PARTS,
    PROMPTS,
    RUNTIMES,
    SAMPLED,
    SEED,
    SIZE,
    STAGED,
    WITH_HEADS,
    WITH_MODULES,
    drafter,
    runtime,
)
from wild_drafters import Erratic

from selfspec.reference import oracle
from selfspec.sampling import Chance
from selfspec.types import Sampling


def new_tokens_only(prefix, logits):
    """A processor that needs the prefix of its own row: tokens of the text become unlikely."""
    return logits - 2.0 * np.isin(np.arange(SIZE), list(prefix))


TEMPERATURES = (0.0, 0.3, 1.0, 1.5)
ALONE = [[name] for name in PROCESSORS]
TOGETHER = [some(np.random.default_rng([5, i]), PROCESSORS) for i in range(30)]
SHAPINGS: list[dict[str, Any]] = [
    {},
    {"processors": (new_tokens_only,)},
    *(settings(np.random.default_rng([6, i]), names) for i, names in enumerate([*ALONE, *TOGETHER])),
]


@dataclass(frozen=True)
class Cell:
    """One configuration; ``seed`` chooses lengths and ends."""

    shaping: int
    temperature: float
    gamma: int
    texts: int
    coupled: bool
    seed: int

    @property
    def sampling(self):
        return Sampling(self.temperature, coupled=self.coupled, **SHAPINGS[self.shaping])


def cells(runtime_name, drafter_name) -> Iterator[Cell]:
    """Every value of every axis, in a random arrangement; shapings go round over the drafters."""
    count = RUNTIMES[runtime_name].cells
    if drafter_name in [*STAGED, *AHEAD, *WITH_HEADS, *WITH_MODULES]:
        count = min(count // 2, 18)
    place = [*DRAFTERS, *LIGHTER, *PARTS, *STAGED, *AHEAD, *WITH_HEADS, *WITH_MODULES].index(drafter_name)
    random = np.random.default_rng([place, *runtime_name.encode()])

    def axis(values):
        return random.permutation(np.resize(values, count)).tolist()

    shapings = axis(np.roll(range(len(SHAPINGS)), -place * count))
    axes = zip(shapings, axis(TEMPERATURES), axis(range(9)), axis(range(1, 5)), axis([0, 1]), strict=True)
    for seed, (shaping, temperature, gamma, texts, free) in enumerate(axes):
        coupled = drafter_name in SAMPLED or not free
        yield Cell(shaping, temperature, gamma, texts, coupled, seed)


@cache
def plain(runtime_name, sampling, text):
    """Plain decoding's text from a prompt, longer than any cell needs, by the oracle."""
    new = oracle(runtime(runtime_name), PROMPTS[text], MOST, Chance(SEED, text), sampling)
    return PROMPTS[text] + new


def check(runtime_name, drafter_name, cell) -> tuple[list[int], int]:
    """Compare a cell with the oracle; how many tokens each draft had accepted, and the ends inside a draft."""
    random = np.random.default_rng([cell.seed, cell.texts])
    texts = [plain(runtime_name, cell.sampling, i) for i in range(cell.texts)]
    prompts = PROMPTS[: cell.texts]
    counts = random.integers(1, MOST + 1, size=cell.texts).tolist()
    stops = [
        text[len(p) + int(random.integers(MOST))] if random.random() < 0.5 else -1
        for p, text in zip(prompts, texts, strict=True)
    ]
    accepted: list[int] = []
    cut = 0

    def each_round(context, all_texts, round_):
        nonlocal cut
        accepted.extend(commit.accepted for commit in round_.commits if commit.drafted)
        cut += sum(
            commit.finish_reason == "stop" and 0 < commit.accepted < commit.depth for commit in round_.commits
        )
        if (check_round := RUNTIMES[runtime_name].after_round) is not None:
            check_round(context, all_texts, round_)

    kind, options = drafter(drafter_name, runtime(runtime_name), texts, cell.gamma, cell.seed)
    done = run(
        runtime(runtime_name),
        prompts,
        kind,
        options,
        new_tokens=counts,
        sampling=cell.sampling,
        seed=SEED,
        ends=[lambda token, stop=stop: token == stop for stop in stops],
        each_round=each_round,
        clock=Erratic(cell.seed, runtime(runtime_name).costs)
        if drafter_name in CONTROLLERS | HEAD_CONTROLLERS
        else time.perf_counter,
    )
    for prompt, text, count, stop, got in zip(prompts, texts, counts, stops, done, strict=True):
        want = text[len(prompt) : len(prompt) + count]
        if stop in want:
            want = want[: want.index(stop) + 1]
        assert got.tokens[len(prompt) :] == want, cell
        assert got.finish_reason == ("stop" if want[-1] == stop else "length"), cell
    return accepted, cut
