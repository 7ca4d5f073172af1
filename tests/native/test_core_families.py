"""Every family on the native core: torch's logits, and rows that are independent to the last bit.

Models have four layers, with a window of 8 where the family has windows; there texts are longer than a ring.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from doubles import run
from family_drafts import DRAFTS, KNOWN
from family_models import CASES as ALL
from family_models import HYBRIDS
from native_models import (
    MOST_ROWS,
    chain,
    family,
    family_core,
    family_torch,
    in_chunks,
    random_tree,
    same,
    states,
)

from selfspec.context import Context
from selfspec.runtime.packing import native
from selfspec.runtime.rotary import exact_power
from selfspec.types import LayerPlan, Rows, SubLayer

CASES = [case for case in ALL if case not in HYBRIDS]  # which never run on the core
EVERY = pytest.mark.parametrize("case", CASES)
INT8 = ("mistral", "gemma2", "falcon", "qwen2_moe", "gpt_oss")
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "granitemoe")
NEW = 12
RING = 128


def windowed(case):
    config = family(case)[0]
    return any(config.layer(index).window for index in range(4))


@cache
def tokens_for(case):
    """A text longer than a ring where there are windows, else as long as the positions of the model allow."""
    return np.random.default_rng(0).integers(3, 101, 150 if windowed(case) else 60).tolist()


@cache
def want(case, kind="fp32"):
    """The logits of one pass over the text; cut into passes of 40 rows where there are rings."""
    return chain(family_core(case, kind), tokens_for(case))


@EVERY
def test_float32_logits_are_those_of_torch(case):
    """Guards every operator and every fact, past the window and past the ring."""
    theirs = chain(family_torch(case), tokens_for(case))
    assert np.abs(want(case) - theirs).max() < 2e-5
    assert np.abs(theirs).max() > 0.3  # far above the tolerance


@EVERY
def test_a_gapped_plan_and_taps_are_those_of_torch(case):
    """Guards the order within a layer, parallel residuals above all: what is left out moves nothing."""
    plan, tokens = LayerPlan.skipping(4, attention=[0, 2], mlp=[1, 2]), tokens_for(case)[:20]
    taps, rows = [SubLayer(1, "attention"), SubLayer(3)], Rows.of([0] * 20, range(20))
    got = [
        runtime.run(runtime.embed(tokens, rows.positions), plan, rows, runtime.new_cache(1, 20), taps)
        for runtime in (family_core(case), family_torch(case))
    ]
    (mine, tapped), (theirs, wanted) = got
    assert np.abs(mine - theirs.numpy()).max() < 2e-5 * max(1.0, float(theirs.abs().max()))
    for tap in taps:
        assert np.abs(tapped[tap] - wanted[tap].numpy()).max() < 2e-5 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize(("case", "kind"), [*((case, "fp32") for case in CASES), *((c, "int8") for c in INT8)])
def test_rows_are_independent(case, kind):
    """Guards the claim of the core in every family: chunks, threads, kernels and rows beside it change no bit."""
    tokens, wanted, runtime = tokens_for(case), want(case, kind), family_core(case, kind)
    assert same(in_chunks(runtime, tokens, 1), wanted)
    assert same(in_chunks(runtime, tokens, 7), wanted)
    assert same(in_chunks(family_core(case, kind, threads=2), tokens, 13), wanted)
    if kind == "fp32":  # the kernels of the kinds themselves have their own test
        assert same(in_chunks(family_core(case, kernels="portable"), tokens[:40], 20), wanted[:40])
    assert native().kernel_sets()[-1] == "portable"


@pytest.mark.parametrize("case", ["mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize(("kv", "most"), [("float16", 4e-3), ("bfloat16", 3e-2), ("int8", 6e-2)])
def test_narrow_caches_stay_close_and_independent(case, kv, most):
    """Guards the precisions of keys and values: close to float32, and the same bits however rows are cut."""
    runtime, tokens = family_core(case, kv=kv), tokens_for(case)
    got = chain(runtime, tokens)
    assert 1e-6 < np.abs(got - want(case)).max() < most
    assert same(in_chunks(runtime, tokens, 5), got)


@EVERY
def test_a_ragged_batch_gives_the_bits_of_its_texts(case):
    """Guards rows of several slots, in any order, some of them past a ring."""
    runtime, slots, length = family_core(case), [2, 0, 3], len(tokens_for(case))
    prompts = [tokens_for(case)[:cut] for cut in (MOST_ROWS, 2, 11)]
    more = tokens_for(case)[MOST_ROWS:length]
    store = runtime.new_cache(4, length)
    flat = [t for p in prompts for t in p]
    places = [i for p in prompts for i in range(len(p))]
    rows = Rows.of(np.repeat(slots, [len(p) for p in prompts]), places)
    order = np.random.default_rng(0).permutation(len(flat))
    got = np.empty((len(flat), runtime.config.vocab_size), np.float32)
    got[order] = runtime.logits(states(runtime, [flat[i] for i in order], rows.take(order), store))
    assert same(got, np.concatenate([want(case)[: len(p)] for p in prompts]))
    assert same(chain(runtime, more, store, MOST_ROWS, slot=2), want(case)[MOST_ROWS:])


@EVERY
def test_a_branch_of_a_tree_gives_the_bits_of_its_chain(case):
    """Guards trees, where their cells come round in a ring too, and the cells that move afterwards."""
    runtime, tokens, size = family_core(case), tokens_for(case), 12
    for start in (5, RING - 6) if windowed(case) else (5, 40):
        random = np.random.default_rng(start)
        parents = random_tree(random, size)
        branch = [size - 1]
        while parents[branch[0]] >= 0:
            branch.insert(0, parents[branch[0]])
        drafted = random.integers(3, 101, size).tolist()
        for depth, leaf in enumerate(branch):
            drafted[leaf] = tokens[start + depth]
        cache = runtime.new_cache(1, 150)
        chain(runtime, tokens[:start], cache)
        rows = Rows.trees([0] * size, range(start, start + size), parents)
        hidden = states(runtime, drafted, rows, cache)
        end = start + len(branch)
        assert same(np.asarray(runtime.logits(hidden))[branch], want(case)[start:end])
        runtime.keep(cache, rows.take(branch))
        assert same(chain(runtime, tokens[end : end + 5], cache, end), want(case)[end : end + 5])


# -- texts ------------------------------------------------------------------------------------------------


def prompts_of(case):
    """Of different lengths; where there are windows, one that comes round while the text is made."""
    tokens = tokens_for(case)
    return [tokens[: RING - 10] if windowed(case) else tokens[:24], tokens[:3], [9] * 11]


@cache
def plain(case):
    """Plain decoding's texts, each alone."""
    return [run(family_core(case), [prompt], new_tokens=NEW)[0].tokens for prompt in prompts_of(case)]


@pytest.mark.parametrize(
    ("case", "draft"),
    [*((case, draft) for case in CASES for draft in DRAFTS), *((case, "fewer experts") for case in MIXTURES)],
)
def test_drafts_change_no_bit(case, draft, monkeypatch):
    """Guards losslessness: the texts of plain decoding, and every row that a verification scores has the bits of
    a prefill of its text; exits, gaps, fewer experts, chains and trees, rolled back across windows, in a batch.
    """
    runtime, texts = family_core(case), plain(case)
    full = [chain(runtime, text) for text in texts]
    drafter, options = (
        ("moe", {"gamma": 4, "utility": False})
        if draft == "fewer experts"
        else DRAFTS[draft](runtime.config, texts)
    )
    accepted, checked = [], 0
    score = Context.score

    def compare(self, batch, drafts):
        nonlocal checked
        found = score(self, batch, drafts)
        for seen, made, logits in zip(batch, drafts, found, strict=True):
            for row in range(len(made) + 1):
                line = [*seen.tokens, *made.before(row)]
                if line == texts[seen.index][: len(line)]:
                    assert same(logits[row], full[seen.index][len(line) - 1])
                    checked += 1
        return found

    monkeypatch.setattr(Context, "score", compare)
    done = run(
        runtime,
        prompts_of(case),
        drafter,
        options,
        new_tokens=NEW,
        each_round=lambda _context, _texts, round_: accepted.extend(c.accepted for c in round_.commits),
    )
    assert [text.tokens for text in done] == texts
    assert checked >= 3 * (NEW - 1)
    if draft in KNOWN:
        assert max(accepted) >= 3  # else nothing was kept past a rollback


@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6])
def test_frequencies_have_the_same_bits_on_every_processor(theta):
    exponents = np.arange(0, 128, 2, dtype=np.float32) / np.float32(128)
    powers = exact_power(theta, exponents)
    assert powers.tolist() == [float(np.float32(theta ** float(exponent))) for exponent in exponents]
