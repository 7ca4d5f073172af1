"""Losslessness, cell by cell: see `lossless_table`, where drafters and runtimes join with one line each."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from lossless_cells import SHAPINGS, TEMPERATURES, cells, check
from lossless_table import (
    AHEAD,
    DRAFTERS,
    EARLY_EXITS,
    HYBRID,
    LIGHTER,
    MIXED,
    PARTS,
    RUNTIMES,
    STAGED,
    WITH_HEADS,
    WITH_MODULES,
)

from selfspec.context import Context, Text
from selfspec.drafters.steps import Growing
from selfspec.runtime.torch import TorchRuntime
from selfspec.runtime.torch_states import Runs
from selfspec.sampling import Chance
from selfspec.types import Prefix, Rows
from selfspec.verify import verify_chain

ROUNDED = ("cpu fp32", "cpu bf16", "cpu int8")  # runtimes that can run a model in fewer bits
EVERY = [(runtime, drafter) for runtime, target in RUNTIMES.items() for drafter in target.drafters]
EVERY += [(runtime, drafter) for runtime in ROUNDED for drafter in LIGHTER]
EVERY += [("torch", drafter) for drafter in PARTS]
EVERY += [("cpu int8", drafter) for drafter in STAGED | AHEAD]
EVERY += [(runtime, drafter) for runtime in ("torch", "cpu fp32", "cpu int8") for drafter in WITH_HEADS]
EVERY += [(runtime, drafter) for runtime in ("toy", "torch") for drafter in STAGED | AHEAD if drafter not in MIXED]
EVERY += [("torch", drafter) for drafter in WITH_MODULES]
EVERY += [("hybrid delta", drafter) for drafter in WITH_MODULES if "comb" not in drafter]
# of chains, what recurrent layers verify
EVERY += [("hybrid conv", name) for name, (_, found) in STAGED.items() if {*HYBRID, *EARLY_EXITS}.issuperset(found)]
SELDOM = {"ngram", "ngram stop", "ngram comb", "overlap ngram", "suffix"}  # right: in short texts a look-up is not


@pytest.mark.parametrize(("runtime", "drafter"), EVERY)
def test_a_drafter_on_a_runtime_gives_the_plain_text(runtime, drafter):
    """Guards every claim of docs/lossless.md: greedy, coupled and deterministic drafts, cell by cell."""
    accepted, ends = [], 0
    for cell in cells(runtime, drafter):
        found, cut = check(runtime, drafter, cell)
        accepted += found
        ends += cut
    # a draft that is never tried, never right, or never cut would prove nothing
    assert accepted
    if drafter == "wrong":
        assert max(accepted) == 0
    elif drafter not in SELDOM:
        assert max(accepted) >= (1 if drafter in [*STAGED, *AHEAD, *WITH_HEADS, *WITH_MODULES] else 2)
    if drafter == "right":
        assert max(accepted) >= 5
        assert ends > 0


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_value_of_every_axis_is_in_the_table(runtime):
    """Guards the sampling of cells."""
    seen = set()
    for drafter in RUNTIMES[runtime].drafters:
        row = list(cells(runtime, drafter))
        seen |= {cell.shaping for cell in row}
        assert {cell.gamma for cell in row} == set(range(9))
        assert {cell.temperature for cell in row} == set(TEMPERATURES)
        assert {cell.texts for cell in row} == {1, 2, 3, 4}
    if len(RUNTIMES[runtime].drafters) == len(DRAFTERS):  # shapings go round over all of them
        assert seen == set(range(len(SHAPINGS)))


def one_prefix(monkeypatch):
    monkeypatch.setattr(Text, "prefix", lambda self, _draft: Prefix(list(self.tokens), self.prompt_length))


def noise_by_call(monkeypatch):
    realise, calls = Chance.realise, iter(range(10**9))
    monkeypatch.setattr(Chance, "realise", lambda self, law, _position: realise(self, law, next(calls)))


def no_cells_moved(monkeypatch):
    monkeypatch.setattr(TorchRuntime, "keep", lambda *_: None)


def a_row_too_far(monkeypatch):
    score = Context.score
    monkeypatch.setattr(Context, "score", lambda *given: [np.roll(rows, 1, axis=0) for rows in score(*given)])


def ends_in_the_bonus_only(monkeypatch):
    for rule in ("verify_chain", "verify_block"):
        monkeypatch.setattr(
            f"selfspec.decode.{rule}", lambda draft, target, dice, _: verify_chain(draft, target, dice)
        )


def states_that_go_on(monkeypatch):
    """What recurrent caches do by themselves: a row follows the last one that ran in its slot, accepted or not."""
    monkeypatch.setattr("selfspec.runtime.torch_placement.Runs", Onward)


class Onward(Runs):
    reached: ClassVar[dict[int, int]] = {}

    def __init__(self, rows, block, device):
        positions = rows.positions.copy()
        for row in np.argsort(rows.positions, kind="stable"):
            slot = int(rows.slots[row])
            positions[row] = self.reached.get(slot, -1) + 1 if positions[row] else 0
            self.reached[slot] = int(positions[row])
        super().__init__(Rows(rows.slots, positions), block, device)


def a_draft_row_a_cell_too_early(monkeypatch):
    step = Context.step

    def early(self, plan, texts, tokens, depths, runtime=None, begun=()):
        return step(self, plan, texts, tokens, [d - (runtime is not None) for d in depths], runtime, begun)

    monkeypatch.setattr(Context, "step", early)


def states_of_wrong_guesses(monkeypatch):
    """Rows that an early stage has guessed wrongly are verified from the states of the guess."""
    keep = Growing.keep
    monkeypatch.setattr(Growing, "keep", lambda self, _rows: keep(self, len(self.states)))


def a_guess_that_hides_the_next(monkeypatch):
    """The row after a wrong guess stands where it would if the guess had held."""
    depth = Growing.depth.fget
    monkeypatch.setattr(Growing, "depth", property(lambda self: depth(self) + (0 < depth(self) < len(self.before))))


FAULTS = [
    (one_prefix, "toy", "right"),
    (noise_by_call, "toy", "early_exit 4"),
    (no_cells_moved, "torch", "bush"),
    (states_that_go_on, "hybrid conv", "mixed"),
    (states_that_go_on, "hybrid delta", "mixed"),
    (a_row_too_far, "torch", "ngram"),
    (ends_in_the_bonus_only, "toy", "right"),
    (states_of_wrong_guesses, "toy", "mixed>early_exit comb"),
    (a_guess_that_hides_the_next, "cpu int8", "any chain"),
    (a_draft_row_a_cell_too_early, "cpu int8", "quantized"),  # it overwrites what the target has of a token
]


@pytest.mark.parametrize(("fault", "runtime", "drafter"), FAULTS)
def test_the_table_catches(monkeypatch, fault, runtime, drafter):
    """The negative controls: a table that passes with these proves nothing."""

    def check_all():
        for name in STAGED if drafter == "any chain" else [drafter]:
            for cell in cells(runtime, name):
                check(runtime, name, cell)

    check_all()  # from here on the oracle's texts are known, and the fault cannot change them
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check_all()
