"""Rings of the native core: what is kept, when it may be gone back to, and that nobody can tell."""

from __future__ import annotations

import numpy as np
import pytest
from family_models import WINDOW
from native_models import chain, family, family_core, same, states

from selfspec.runtime.cpu import CpuRuntime
from selfspec.types import MOST_ROWS, Rows

TOKENS = np.random.default_rng(1).integers(3, 101, 300).tolist()
RING = 128  # whole segments


@pytest.fixture(scope="module", params=["mistral", "cohere2", "gpt_oss"])
def pair(request):
    """The same model with small rings, and with rings that no text here fills."""
    return family_core(request.param), CpuRuntime(*family(request.param)[:2], threads=1)


@pytest.mark.parametrize(("case", "sliding"), [("mistral", 4), ("cohere2", 3), ("gpt_oss", 2), ("olmo2", 0)])
def test_a_window_bounds_the_cache(case, sliding):
    """Guards memory: a layer with a window has window + rows of a pass, in whole segments, whatever the text."""
    runtime, length = CpuRuntime(*family(case)[:2], threads=1), 100_000
    ring = -(-(WINDOW + MOST_ROWS) // 128) * 128
    config = runtime.config
    cell = 2 * config.num_kv_heads * -(-config.head_dim // 8) * 8 * 4  # in float32
    assert runtime.new_cache(1, length).nbytes == (sliding * ring + (4 - sliding) * length) * cell
    assert runtime.new_cache(2, 5).nbytes == 2 * 4 * 16 * cell
    assert runtime.new_cache(1, length).has_rings == bool(sliding)


@pytest.mark.parametrize("size", [1, 9, 40, 300])
def test_a_ring_gives_the_bits_of_a_cache_that_keeps_everything(pair, size):
    """Guards the ring: only what no row sees is overwritten; passes of more rows than it has room for are cut."""
    small, large = pair
    cache, got = small.new_cache(1, 300), []
    assert cache.has_rings
    assert not large.new_cache(1, 300).has_rings
    for start in range(0, 300, size):
        got.append(chain(small, TOKENS[start : start + size], cache, start))
    assert same(np.concatenate(got), chain(large, TOKENS))


def test_a_ring_that_is_too_small_would_be_seen(pair):
    """Negative control of the test above: with room for fewer rows than a pass has, a bit differs."""
    small, large = pair
    assert small.most_rows == 40
    cache = small.new_cache(1, 300)
    small.most_rows = 300  # the cache was made for 40
    try:
        assert not same(chain(small, TOKENS, cache), chain(large, TOKENS))
    finally:
        small.most_rows = 40


@pytest.mark.parametrize("lengths", [[20, 130, 300], [127, 129, 300], [200, 300]])
def test_a_cache_grows_before_and_after_it_has_come_round(pair, lengths):
    """Guards `longer`: cells keep their places, whether the ring has its full size already or not."""
    small, large = pair
    start, got, cache = 0, [], small.new_cache(2, lengths[0])
    for length in lengths:
        cache = cache if length == cache.length else cache.longer(length)
        for stop in range(start + 10, length + 1, 10):
            got.append(chain(small, TOKENS[start:stop], cache, start, slot=1))
            start = stop
    assert same(np.concatenate(got), chain(large, TOKENS)[:start])


def test_drafts_are_rolled_back_across_the_end_of_a_ring(pair):
    """Guards rejected rows, even such as are no numbers, whose cells have come round."""
    small, large = pair
    want, cache = chain(large, TOKENS), small.new_cache(1, 300)
    for start in range(0, 280, 4):
        wrong = np.full((30, small.config.hidden_size), np.nan, dtype=np.float32)
        end = min(start + 30, 300)
        full = Rows.of([0] * (end - start), range(start, end))
        small.run(wrong[: end - start], _full(small), full, cache)
        assert same(chain(small, TOKENS[start : start + 4], cache, start), want[start : start + 4])


def test_a_tree_may_be_deeper_than_the_window(pair):
    """Guards rows whose own ancestors are out of sight."""
    small, large = pair
    start, deep = 120, 14
    cache = small.new_cache(1, 300)
    chain(small, TOKENS[:start], cache)
    branch, parents, tokens = [-1], [], []
    for depth in range(deep):
        parents += [branch[-1], branch[-1]]  # beside each row of the branch a leaf that is wrong
        branch.append(2 * depth)
        tokens += [TOKENS[start + depth], 7]
    rows = Rows.trees([0] * len(tokens), range(start, start + len(tokens)), parents)
    got = np.asarray(small.logits(states(small, tokens, rows, cache)))
    want = chain(large, TOKENS[: start + deep + 3])
    assert deep > WINDOW
    assert same(got[::2], want[start : start + deep])
    small.keep(cache, rows.take(np.arange(0, len(tokens), 2)))
    assert same(chain(small, TOKENS[start + deep : start + deep + 3], cache, start + deep), want[start + deep :])


@pytest.mark.parametrize(("written", "to", "can"), [(80, 3, True), (120, 119, True), (120, 100, False)])
def test_going_back_asks_whether_the_ring_has_come_round(written, to, can):
    """Guards a conversation whose earlier text changes: 128 places, of which a pass may overwrite 40."""
    cache = family_core("mistral").new_cache(1, 300)
    assert cache.rewinds(written, to) is can
    assert family_core("olmo2").new_cache(1, 300).rewinds(written, to)


def _full(runtime):
    from selfspec.types import LayerPlan

    return LayerPlan.full(runtime.config.num_layers)
