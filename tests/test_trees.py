"""Tree rows: a branch of a tree equals the same chain, in the runtime; the loop is in `lossless_table`."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import tiny_runtime

from selfspec.types import LayerPlan, Rows

FULL = LayerPlan.full(5)
PREFIX = [5, 17, 3, 3, 42, 8, 29]
TOKENS = [60, 1, 33, 20, 9, 44, 2, 50]  # token 0 is pending
PARENTS = [-1, 0, 1, 0, 3, 1, 0, 4]  # rows; the root is the pending one
# bits may differ where torch sums over another number of cells, as they do between chains of other lengths
EXACT = 1e-13


def chain(runtime, tokens, cache=None, slot=0, start=0):
    """Logits of a chain of rows from cell ``start`` on."""
    cache = cache or runtime.new_cache(1, len(tokens))
    rows = Rows.of([slot] * len(tokens), range(start, start + len(tokens)))
    return runtime.logits(runtime.run(runtime.embed(tokens), FULL, rows, cache)[0])


def branch(row, parents=PARENTS):
    """Rows from the root to ``row``."""
    return [*(branch(parents[row], parents) if parents[row] >= 0 else ()), row]


def grown(runtime, *, length=20, shared=0, order=None):
    """A cache with the prefix, and the logits of a tree after it; layers below ``shared`` run row by row."""
    cache = runtime.new_cache(1, length)
    chain(runtime, PREFIX, cache)
    rows = Rows.trees([0] * len(TOKENS), range(len(PREFIX), len(PREFIX) + len(TOKENS)), PARENTS)
    hidden = runtime.embed(TOKENS)
    if shared:
        for i in range(len(TOKENS)):
            hidden[i : i + 1], _ = runtime.run(hidden[i : i + 1], FULL.span(0, shared), rows.take([i]), cache)
    order = list(range(len(TOKENS))) if order is None else order
    hidden, _ = runtime.run(hidden[order], FULL.span(shared, 5), rows.take(order), cache)
    logits = np.empty((len(TOKENS), 61))
    logits[order] = runtime.logits(hidden)
    return cache, rows, logits


def test_rows_of_trees():
    """Guards position, cell and lineage of each row."""
    rows = Rows.trees([1, 1, 1, 0, 0], [7, 8, 9, 3, 4], [-1, 0, 0, -1, 3])
    assert rows.positions.tolist() == [7, 8, 8, 3, 4]
    assert rows.cells.tolist() == [7, 8, 9, 3, 4]
    assert rows.lineage.tolist() == [[7, 7], [7, 8], [7, 9], [3, 3], [3, 4]]
    part = rows.take([2, 4])
    assert (part.positions.tolist(), part.cells.tolist()) == ([8, 4], [9, 4])
    flat = Rows.of([0, 0], [3, 4])
    assert flat.cells is flat.positions
    assert flat.take([1]).lineage is None


@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_branch_equals_the_chain(shared, shuffled):
    """Guards the mask of one slot: a row sees the text and its own branch, whatever the pass holds besides."""
    runtime = tiny_runtime()
    order = np.random.default_rng(0).permutation(len(TOKENS)).tolist() if shuffled else None
    _, _, logits = grown(runtime, shared=shared, order=order)
    for row in range(len(TOKENS)):
        tokens = [*PREFIX, *(TOKENS[i] for i in branch(row))]
        assert np.abs(logits[row] - chain(runtime, tokens)[-1]).max() < EXACT


def test_a_wrong_parent_is_seen():
    """The negative control: rows that see more than their branch have other logits."""
    runtime = tiny_runtime()
    _, _, logits = grown(runtime)
    tokens = [*PREFIX, *TOKENS]
    for row in (3, 4, 5, 6, 7):
        assert np.abs(logits[row] - chain(runtime, tokens)[len(PREFIX) + row]).max() > 1e-3


@pytest.mark.parametrize("slots", [[0, 1, 2], [4, 1, 3]])
def test_a_ragged_batch_of_trees_equals_its_chains(slots):
    """Guards the padded mask: trees, a chain and a single row of different slots in one pass."""
    runtime = tiny_runtime()
    cache = runtime.new_cache(5, 20)
    prefixes = [PREFIX, PREFIX[:2], PREFIX[3:6]]
    shapes = [PARENTS, [-1, 0, 1], [-1]]
    where: list[list[int]] = [[], [], []]
    for slot, prefix, shape in zip(slots, prefixes, shapes, strict=True):
        chain(runtime, prefix, cache, slot)
        root = len(where[0])
        where[0] += [slot] * len(shape)
        where[1] += range(len(prefix), len(prefix) + len(shape))
        where[2] += [parent + root if parent >= 0 else -1 for parent in shape]
    rows = Rows.trees(*where)
    tokens = [t for shape in shapes for t in TOKENS[: len(shape)]]
    logits = runtime.logits(runtime.run(runtime.embed(tokens), FULL, rows, cache)[0])
    at = 0
    for prefix, shape in zip(prefixes, shapes, strict=True):
        for row in range(len(shape)):
            want = chain(runtime, [*prefix, *(TOKENS[i] for i in branch(row, shape))])[-1]
            assert np.abs(logits[at] - want).max() < EXACT
            at += 1


@pytest.mark.parametrize("leaf", range(len(TOKENS)))
def test_an_accepted_branch_is_moved_to_its_positions(leaf):
    """Guards `keep`: afterwards the cache is that of the text, in every layer, and the text goes on from it."""
    runtime = tiny_runtime()
    cache, rows, _ = grown(runtime)
    runtime.keep(cache, rows.take(branch(leaf)))
    tokens = [*PREFIX, *(TOKENS[i] for i in branch(leaf))]
    fresh = runtime.new_cache(1, len(tokens))
    chain(runtime, tokens, fresh)
    for ours, theirs in zip(cache.keys + cache.values, fresh.keys + fresh.values, strict=True):
        assert (ours[0, : len(tokens)] - theirs[0]).abs().max() < EXACT
    more = chain(runtime, [7, 11], cache, start=len(tokens))
    assert np.abs(more - chain(runtime, [*tokens, 7, 11])[-2:]).max() < EXACT


def test_keeping_a_chain_moves_nothing():
    """Guards the price of a chain: no cell is touched."""
    runtime = tiny_runtime()
    cache, _, _ = grown(runtime)
    before = [stored.clone() for stored in cache.keys + cache.values]
    runtime.keep(cache, Rows.of([0, 0], [7, 8]))
    for stored, old in zip(cache.keys + cache.values, before, strict=True):
        assert stored.equal(old)
