"""The native core against the torch runtime: every operator, every kind of weights, plans, taps, heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from native_models import KINDS, ODD, both, chain, changed, core, packed, random_weights, tokens_of

from selfspec.errors import OptionError, OutOfMemoryError
from selfspec.model.config import Rope
from selfspec.runtime.packing import Packed, allocate, packed_bytes
from selfspec.runtime.torch import TorchRuntime
from selfspec.types import LayerPlan, Rows, SubLayer

VARIANTS = {
    "odd widths": {},
    "multi-head": {"num_kv_heads": 6},
    "multi-query": {"num_kv_heads": 1},
    "sixteen heads of a group": {"num_heads": 16, "num_kv_heads": 1, "head_dim": 8},
    "more heads than a tile has": {"num_heads": 30, "num_kv_heads": 1, "head_dim": 2},
    "even widths": {"hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "head_dim": 16, "vocab_size": 256},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tied_head": True},
    "linear rope": {"rope": Rope(kind="linear", factor=4.0)},
    "llama3 rope": {"rope": Rope(5e4, "llama3", 8.0, 1.0, 4.0, 32)},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_logits_are_those_of_torch(variant):
    """Guards every operator of the family: padding, rotary kinds, grouped queries, biases, tied head."""
    mine, theirs = both(changed(**VARIANTS[variant]))
    tokens = tokens_of(150)  # more than one segment of attention, more than one panel of rows
    assert np.abs(chain(mine, tokens) - chain(theirs, tokens)).max() < 2e-4


@pytest.mark.parametrize(("kind", "tolerance"), [("bf16", 2e-4), ("fp16", 2e-4), ("int8", 2.0), ("int4", 2.0)])
def test_packed_logits_are_those_of_the_unpacked_weights(kind, tolerance):
    """Guards the packed layouts: bf16 and fp16 are exact; integer kinds also round activations to 8 bits."""
    mine, theirs = both(ODD, kind, kv="float32")
    tokens = tokens_of(40)
    want = chain(theirs, tokens)
    assert np.abs(chain(mine, tokens) - want).max() < tolerance
    other = chain(TorchRuntime(ODD, {n: torch.from_numpy(w) for n, w in random_weights(ODD, 1).items()}), tokens)
    assert np.abs(other - want).max() > 20  # the tolerance is far below a wrong model


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_integer_products_are_exact_for_the_quantised_activations(kind):
    """Guards the integer kernels: only the sums are rounded once the activations are 8 bits per block of 32."""
    mine = core(kind)
    weights, norm = packed(random_weights(ODD), kind), random_weights(ODD)["model.norm.weight"]
    hidden = np.random.default_rng(0).normal(size=(9, 72)).astype(np.float32)
    states = hidden / np.sqrt((hidden.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5) * norm
    blocks = np.pad(states, ((0, 0), (0, 24))).reshape(9, 3, 32)
    steps = np.abs(blocks).max(axis=2, keepdims=True) / 127
    rounded = (np.rint(blocks / steps) * steps).reshape(9, 96)[:, :72]
    want = rounded @ weights["lm_head.weight"].unpack().astype(np.float64).T
    assert np.abs(mine.logits(hidden) - want).max() < 1e-4
    assert np.abs(states @ weights["lm_head.weight"].unpack().T - want).max() > 1e-2


def test_a_half_precision_cache_stays_close():
    """Guards the fp16 cache, which is the default for all but float32 weights."""
    mine, theirs = both(ODD, kv="float16")
    tokens = tokens_of(150)
    difference = np.abs(chain(mine, tokens) - chain(theirs, tokens)).max()
    assert 1e-6 < difference < 2e-2


@pytest.mark.parametrize(("attention", "mlp"), [((), (1,)), ((0,), ()), ((1, 2), (0, 2)), ((0, 1, 2), (0, 1, 2))])
def test_gapped_plans_and_taps_are_those_of_torch(attention, mlp):
    """Guards layer skip, and taps after attention and after MLP."""
    mine, theirs = both(ODD)
    plan, tokens = LayerPlan.skipping(3, attention, mlp), tokens_of(9)
    taps = [SubLayer(0), SubLayer(2, "attention"), SubLayer(2)]
    rows = Rows.of([0] * 9, range(9))
    got, tapped = mine.run(mine.embed(tokens), plan, rows, mine.new_cache(1, 9), taps)
    want, wanted = theirs.run(theirs.embed(tokens), plan, rows, theirs.new_cache(1, 9), taps)
    assert np.abs(got - want.numpy()).max() < 1e-4
    assert set(tapped) == set(wanted)
    for tap, state in tapped.items():
        assert np.abs(state - wanted[tap].numpy()).max() < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_are_the_rows_of_the_packed_matrix(kind):
    """Guards the embedding that is read from the packed head, stored once."""
    mine, theirs = both(changed(tied_head=True), kind)
    tokens = [0, 202, 17, 17]
    assert np.array_equal(mine.embed(tokens), theirs.embed(tokens).numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_best_is_argmax_and_log_sum_exp_of_the_logits(kind):
    """Guards the fused head: exact token and logit, log-sum-exp up to rounding."""
    mine = core(kind)
    hidden = np.random.default_rng(0).normal(size=(7, 72)).astype(np.float32)
    logits, best = mine.logits(hidden), mine.best(hidden)
    assert np.array_equal(best.tokens, logits.argmax(axis=1))
    assert np.array_equal(best.logits, logits.max(axis=1))
    want = np.log(np.exp(logits.astype(np.float64)).sum(axis=1))
    assert np.abs(best.log_sum_exp - want).max() < 1e-5


def test_top_is_the_stable_order_of_the_logits():
    """Guards top-k: falling order, and the first of equals first."""
    mine = core("int8")
    hidden = np.random.default_rng(0).normal(size=(4, 72)).astype(np.float32)
    order = np.array([5, 5, 3, 9, 5])  # equal logits
    for head in (None, mine.trimmed_head(order)):
        logits = mine.logits(hidden, head)
        want = np.argsort(-logits, axis=1, kind="stable")[:, :5]
        tokens, values = mine.top(hidden, 5, head)
        assert np.array_equal(tokens, want)
        assert np.array_equal(values, np.take_along_axis(logits, want, axis=1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_trimmed_head_gives_the_logits_of_its_rows(kind):
    """Guards row subsets: the same bits as the full head, in the order asked for."""
    mine, tokens = core(kind), np.array([5, 3, 202, 0, 77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 88, 1])
    hidden = np.random.default_rng(0).normal(size=(3, 72)).astype(np.float32)
    head = mine.trimmed_head(tokens)
    assert np.array_equal(mine.logits(hidden, head), mine.logits(hidden)[:, tokens])


def test_what_cannot_be_is_one_clear_error():
    """Guards the options, and a cache beyond memory."""
    with pytest.raises(OptionError, match="threads is 0"):
        core(threads=0)
    with pytest.raises(OptionError, match="kv is 'int4'"):
        core(kv="int4")
    with pytest.raises(OptionError, match="kernels is 'neon'"):
        core(kernels="neon")
    for length in (2**31 - 17, 2**50):
        with pytest.raises(OutOfMemoryError, match="ask for fewer tokens"):
            core().new_cache(2**10, length)


def test_the_core_refuses_what_would_leave_its_memory():
    """Guards the seam: wrong rows are our bugs, and must raise before the core writes anywhere."""
    mine = core()
    cache, hidden = mine.new_cache(1, 8), mine.embed([1])
    data = allocate(packed_bytes("int8", 16, 32) + 1)[1:]
    with pytest.raises(ValueError, match="multiple of 4"):
        Packed("int8", 16, 32, data).matrix()
    for slot, position in ((1, 0), (0, 8), (-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="outside of the cache"):
            mine.run(hidden, LayerPlan.full(3), Rows.of([slot], [position]), cache)
    with pytest.raises(IndexError):
        mine.embed([203])


@pytest.mark.embedded
def test_the_embedded_model_gives_the_logits_of_torch():
    """Guards the real sizes: 30 layers, logits within 2e-4 of torch in float32."""
    from safetensors import safe_open

    from selfspec.model.load import find_checkpoint
    from selfspec.runtime.cpu import CpuRuntime
    from selfspec.runtime.packing import pack

    checkpoint = find_checkpoint("smollm2-135m")
    (path,) = set(checkpoint.weight_files.values())
    with safe_open(path, framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in checkpoint.weight_files}
    mine = CpuRuntime(checkpoint.config, {n: pack(a, "fp32") if a.ndim == 2 else a for n, a in arrays.items()})
    theirs = TorchRuntime.load(checkpoint.config, checkpoint.weight_files)
    tokens = tokens_of(40, checkpoint.config)
    assert np.abs(chain(mine, tokens) - chain(theirs, tokens)).max() < 2e-4
