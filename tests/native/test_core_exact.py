"""Rows are independent, to the last bit: no tolerance anywhere in this file.

Every test compares raw bits of logits in every kind of weights. If any sum depended on the rows beside it, on
the number of threads, on where a chunk ends or where a cell lies, a bit would differ; the last test shows that
the comparison would see it.
"""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from native_models import (
    KINDS,
    ODD,
    chain,
    changed,
    core,
    in_chunks,
    packed,
    random_tree,
    random_weights,
    same,
    states,
    tokens_of,
)

from selfspec.runtime.cpu import CpuRuntime
from selfspec.runtime.packing import native
from selfspec.types import LayerPlan, Rows

CACHES = ("fp32 with float16", "bf16 with float32", "int8 with bfloat16", "int4 with int8")
TOKENS = tokens_of(300)  # three segments of attention, three panels of rows


@pytest.fixture(scope="module", params=[*KINDS, *CACHES])
def case(request):
    """(runtime, the logits of TOKENS in one pass)."""
    kind, _, kv = request.param.partition(" with ")
    options = {"kv": kv} if kv else {}
    runtime = core(kind, **options)
    return runtime, chain(runtime, TOKENS)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_chunks_of_any_size_give_the_bits_of_one_pass(case, size):
    """Guards decode, verification and chunked prefill being one code path."""
    runtime, want = case
    tokens = TOKENS[:150] if size == 1 else TOKENS
    assert same(in_chunks(runtime, tokens, size), want[: len(tokens)])


@pytest.mark.parametrize("count", range(2, 17))
def test_any_number_of_rows_gives_the_bits_of_single_rows(case, count):
    """Guards every size of register tile, at the end of a long path."""
    runtime, want = case
    cache = runtime.new_cache(1, 300)
    chain(runtime, TOKENS[:270], cache)
    assert same(chain(runtime, TOKENS[270 : 270 + count], cache, 270), want[270 : 270 + count])


@pytest.mark.parametrize("threads", [1, 3, 5])
def test_any_number_of_threads_gives_the_same_bits(threads):
    """Guards the division of work: who computes a group or a segment must not matter."""
    for kind in KINDS:
        one, other = core(kind), core(kind, threads=threads)
        want = chain(one, TOKENS[:140])
        for tokens in (TOKENS[:140], TOKENS[:1]):
            assert same(chain(other, tokens), want[: len(tokens)])
        assert same(in_chunks(other, TOKENS[:28], 7), want[:28])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", ["odd", "wide", "multi-query"])
def test_all_kernel_sets_give_the_same_bits(kind, variant):
    """Guards the portable kernels, and fused multiply-adds in plain C++."""
    changes = {"odd": {}, "wide": {"hidden_size": 128, "head_dim": 32}, "multi-query": {"num_kv_heads": 1}}[variant]
    config = changed(attention_bias=True, **changes)
    want = None
    for name in native().kernel_sets():
        runtime = core(kind, config, kernels=name)
        logits = chain(runtime, TOKENS[:140])
        hidden = states(runtime, TOKENS[:5], Rows.of([0] * 5, range(5)), runtime.new_cache(1, 5))
        best = runtime.best(hidden)
        want = want or (logits, best)
        assert same(logits, want[0])
        assert same(best.log_sum_exp, want[1].log_sum_exp)


@pytest.mark.parametrize("start", [0, 1, 15, 100, 126, 250])
def test_a_branch_of_a_tree_gives_the_bits_of_its_chain(case, start):
    """Guards trees: cells lie anywhere behind the root, and the sums go along the path."""
    runtime, _ = case
    random = np.random.default_rng(start)
    size = 14
    parents, tokens = random_tree(random, size), tokens_of(size, seed=start)
    cache = runtime.new_cache(1, start + size)
    if start:
        chain(runtime, TOKENS[:start], cache)
    rows = Rows.trees([0] * size, range(start, start + size), parents)
    got = np.asarray(runtime.logits(states(runtime, tokens, rows, cache)))
    for leaf in range(size):
        branch = [leaf]
        while parents[branch[0]] >= 0:
            branch.insert(0, parents[branch[0]])
        other = runtime.new_cache(1, start + size)
        if start:
            chain(runtime, TOKENS[:start], other)
        want = chain(runtime, [tokens[i] for i in branch], other, start)
        assert same(got[branch], want)


def test_an_accepted_branch_can_be_continued(case):
    """Guards keep: after the cells have moved, the cache is that of a chain."""
    runtime, want = case
    cache = runtime.new_cache(1, 300)
    chain(runtime, TOKENS[:120], cache)
    # the true continuation is rows 0, 2, 5, 6 of a tree; the others are wrong guesses
    parents, true = [-1, 0, 0, 1, 1, 2, 5, 6], {0: 120, 2: 121, 5: 122, 6: 123}
    tokens = [TOKENS[true[i]] if i in true else 7 for i in range(8)]
    rows = Rows.trees([0] * 8, range(120, 128), parents)
    states(runtime, tokens, rows, cache)
    runtime.keep(cache, rows.take(list(true)))
    assert same(chain(runtime, TOKENS[124:130], cache, 124), want[124:130])


def test_a_ragged_batch_gives_the_bits_of_its_sequences(case):
    """Guards batches: rows of several slots, in any order."""
    runtime, _ = case
    prompts = [TOKENS[:130], TOKENS[40:60], TOKENS[9:10], TOKENS[100:240]]
    slots = [3, 0, 4, 1]
    rows = Rows.of(
        [s for s, p in zip(slots, prompts, strict=True) for _ in p], [i for p in prompts for i in range(len(p))]
    )
    tokens = [t for p in prompts for t in p]
    order = np.random.default_rng(0).permutation(len(tokens))
    hidden = states(runtime, [tokens[i] for i in order], rows.take(order), runtime.new_cache(5, 140))
    logits = np.empty((len(tokens), 203), np.float32)
    logits[order] = runtime.logits(hidden)
    assert same(logits, np.concatenate([chain(runtime, p) for p in prompts]))


def test_spans_of_layers_give_the_bits_of_the_whole(case):
    """Guards resumption at a layer, where drafts leave and verification goes on."""
    runtime, want = case
    full, cache = LayerPlan.full(3), runtime.new_cache(1, 300)
    rows = Rows.of([0] * 300, range(300))
    hidden = runtime.embed(TOKENS)
    for low, high in ((0, 1), (1, 1), (1, 3)):
        hidden, _ = runtime.run(hidden, full.span(low, high), rows, cache)
    assert same(runtime.logits(hidden), want)


def test_rejected_rows_leave_no_trace(case):
    """Guards roll-back by writing at a smaller position; even infinities in dead cells must not leak."""
    runtime, want = case
    cache = runtime.new_cache(1, 300)
    chain(runtime, TOKENS[:100], cache)
    wrong = np.full((20, 72), np.nan, dtype=np.float32)
    runtime.run(wrong, LayerPlan.full(3), Rows.of([0] * 20, range(100, 120)), cache)
    assert same(chain(runtime, TOKENS[100:110], cache, 100), want[100:110])


def test_a_longer_cache_holds_what_the_shorter_one_held(case):
    """Guards growth."""
    runtime, want = case
    cache = runtime.new_cache(2, 37)
    chain(runtime, TOKENS[:37], cache, slot=1)
    assert same(chain(runtime, TOKENS[37:60], cache.longer(60), 37, slot=1), want[37:60])


def test_two_threads_may_call_at_once(case):
    """Guards the team: callers take turns, without the interpreter lock."""
    runtime, want = case
    got = [None, None]

    def work(i):
        got[i] = in_chunks(runtime, TOKENS[:60], 3)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert same(got[0], want[:60])
    assert same(got[1], want[:60])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of forks beside threads
def test_a_forked_child_goes_on_working(case):
    """Guards servers that fork: the child has none of the threads and must not wait for them."""
    runtime, want = case
    child = os.fork()
    if child == 0:
        os._exit(0 if same(chain(runtime, TOKENS[:20]), want[:20]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same(chain(runtime, TOKENS[:20]), want[:20])


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="counts threads as Linux lists them")
def test_models_that_take_turns_share_a_team():
    """Guards drafts by a second model: the threads of the one that has just worked spun beside the other's."""

    def threads():
        return len(os.listdir("/proc/self/task"))

    weights, before = packed(random_weights(ODD), "int8"), threads()
    target, draft = (CpuRuntime(ODD, weights, threads=7) for _ in range(2))
    for _ in range(3):
        want = chain(target, TOKENS[:5])
        assert same(chain(draft, TOKENS[:5]), want)
    assert threads() == before + 6
    got = []
    workers = [
        threading.Thread(target=lambda one=one: got.append(chain(one, TOKENS[:40])), args=())
        for one in (target, draft)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert same(*got)
    del target
    assert same(chain(draft, TOKENS[:5]), want)
    del draft, workers
    assert threads() == before


def test_an_idle_team_costs_no_processor_time():
    """Guards against spinning for ever: a second of sleep costs far less than a second."""
    import time

    runtime = core(threads=4)
    chain(runtime, TOKENS[:5])
    time.sleep(0.2)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


def test_the_comparison_sees_the_last_bit():
    """Negative control: norm weights moved by one unit in the last place change bits, and `same` sees it."""
    weights = random_weights(ODD)
    want = chain(CpuRuntime(ODD, packed(weights, "fp32"), threads=1), TOKENS[:4])
    weights["model.norm.weight"] = np.nextafter(weights["model.norm.weight"], np.float32(9))
    got = chain(CpuRuntime(ODD, packed(weights, "fp32"), threads=1), TOKENS[:4])
    assert np.abs(got - want).max() < 1e-4
    assert not same(got, want)
