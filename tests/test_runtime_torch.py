"""The torch runtime against transformers, in float64, and against itself: rows, spans, chunks, batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from doubles import run, tiny_runtime
from transformers import LlamaConfig, LlamaForCausalLM

from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.errors import OptionError, OutOfMemoryError
from selfspec.runtime.products import linear
from selfspec.runtime.torch import TorchRuntime
from selfspec.sampling import Chance
from selfspec.types import LayerPlan, Rows, Sampling, SubLayer

VARIANTS = {
    "plain": {},
    "multi-head": {"num_key_value_heads": 4},
    "multi-query": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 24},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "llama3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
}
TOKENS = [5, 17, 3, 3, 42, 8, 29, 60, 1, 33, 20]


def hugging_face(**changes) -> LlamaForCausalLM:
    torch.manual_seed(1)
    settings = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 96,
    }
    model = LlamaForCausalLM(LlamaConfig(**settings | changes)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms start at 0 and 1: make them count
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def forward(runtime, tokens, *, plan=None, taps=()):
    plan = plan or LayerPlan.full(runtime.config.num_layers)
    rows = Rows.of([0] * len(tokens), range(len(tokens)))
    hidden, tapped = runtime.run(runtime.embed(tokens), plan, rows, runtime.new_cache(1, len(tokens)), taps)
    return runtime.logits(hidden), tapped


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers_in_float64(variant):
    """Guards every operator of the family: rotary kinds, grouped queries, biases, tied head, norms."""
    model = hugging_face(**VARIANTS[variant])
    logits, _ = forward(TorchRuntime.of(model), TOKENS)
    want = model(torch.tensor([TOKENS])).logits[0].detach().numpy()
    assert np.abs(logits - want).max() < 1e-9


ROPES = {
    "150,000": {"rope_type": "default", "rope_theta": 150000.0},
    "500,000": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 150000.0, "factor": 4.0},
    "llama3": VARIANTS["llama3 rope"]["rope_parameters"] | {"rope_theta": 150000.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 96,
    },
}


@pytest.mark.parametrize("width", [64, 96, 128, 256])
@pytest.mark.parametrize("rope", ROPES)
def test_rotary_frequencies_are_those_of_transformers(rope, width):
    """Guards the last bit: powers of NumPy, and correctly rounded ones, are not torch's."""
    changes = {"num_hidden_layers": 1, "head_dim": width, "rope_parameters": ROPES[rope]}
    model = hugging_face(**changes).float()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # float64 has not passed through it
    (turn,) = TorchRuntime.of(model)._turns.values()
    assert torch.equal(turn.frequencies, model.model.rotary_emb.inv_freq)


def test_parameter_tensors_are_shared_not_copied():
    """Guards the promise of zero extra memory for a model that is already loaded."""
    model = hugging_face()
    runtime = TorchRuntime.of(model)
    theirs = {p.data_ptr() for p in model.parameters()}
    ours = {t.data_ptr() for t in tensors_of(runtime)} | {runtime._norm.weight.data_ptr()}
    assert ours == theirs


def tensors_of(runtime):
    """All weights that a runtime has a hold of, but not the frequencies that it computes."""
    yield from (value for value in vars(runtime).values() if isinstance(value, torch.Tensor))
    for block in runtime._blocks:
        yield from block._tensors.values()


SKIPS = [((), (2,)), ((1,), ()), ((0, 1, 3), (0, 3)), ((1, 2), (1, 2)), ((0, 1, 2, 3), (0, 1, 2, 3))]


@pytest.mark.parametrize(("attention", "mlp"), SKIPS)
def test_gapped_plans_equal_a_model_without_those_sublayers(attention, mlp):
    """Guards layer skip: only residual branches are left out, positions and norms stay."""
    model = hugging_face()
    plan = LayerPlan.skipping(4, attention, mlp)
    logits, _ = forward(TorchRuntime.of(model), TOKENS, plan=plan)
    for layer in attention:
        model.model.layers[layer].self_attn.o_proj.weight.data.zero_()
    for layer in mlp:
        model.model.layers[layer].mlp.down_proj.weight.data.zero_()
    want = model(torch.tensor([TOKENS])).logits[0].detach().numpy()
    assert np.abs(logits - want).max() < 1e-9


def test_taps_are_the_residual_stream_after_each_sublayer():
    """Guards exit states and features for heads: tap i is transformers' hidden state i + 1."""
    model = hugging_face()
    taps = [SubLayer(0), SubLayer(2), SubLayer(1, "attention")]
    _, tapped = forward(TorchRuntime.of(model), TOKENS, taps=taps)
    states = model(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    assert set(tapped) == set(taps)
    for layer in (0, 2):
        assert torch.allclose(tapped[SubLayer(layer)], states[layer + 1][0], atol=1e-9)
    assert not torch.allclose(tapped[SubLayer(1, "attention")], tapped[SubLayer(0)])


@pytest.mark.parametrize("chunk", [1, 2, 5, 11])
def test_spans_and_chunks_equal_one_pass(chunk):
    """Guards resumption at a layer, and chunked prefill: any cut of rows and layers gives the same states."""
    runtime = tiny_runtime()
    want, _ = forward(runtime, TOKENS)
    full, cache = LayerPlan.full(5), runtime.new_cache(1, len(TOKENS))
    got = []
    for start in range(0, len(TOKENS), chunk):
        part = TOKENS[start : start + chunk]
        rows = Rows.of([0] * len(part), range(start, start + len(part)))
        hidden = runtime.embed(part)
        for low, high in ((0, 2), (2, 3), (3, 5)):
            hidden, _ = runtime.run(hidden, full.span(low, high), rows, cache)
        got.append(runtime.logits(hidden))
    assert np.abs(np.concatenate(got) - want).max() < 1e-12


@pytest.mark.parametrize("slots", [[0, 1, 2], [2, 0, 1], [4, 1, 3], [4, 2, 3]])
def test_a_ragged_batch_equals_its_sequences(slots):
    """Guards the flat rows: sequences of different length in any slots do not see each other."""
    runtime = tiny_runtime()
    prompts = [TOKENS[:7], TOKENS[4:6], TOKENS[:1]]
    rows = Rows.of(
        [s for s, p in zip(slots, prompts, strict=True) for _ in p],
        [i for p in prompts for i in range(len(p))],
    )
    order = np.random.default_rng(0).permutation(len(rows))
    tokens = [t for p in prompts for t in p]
    hidden, _ = runtime.run(
        runtime.embed([tokens[i] for i in order]),
        LayerPlan.full(5),
        rows.take(order),
        runtime.new_cache(5, 8),
    )
    logits = np.empty((len(rows), 61))
    logits[order] = runtime.logits(hidden)
    want = np.concatenate([forward(runtime, p)[0] for p in prompts])
    assert np.abs(logits - want).max() < 1e-12


def test_rolling_back_is_writing_at_a_smaller_position():
    """Guards against a cache with a length of its own: rejected rows must leave no trace."""
    runtime = tiny_runtime()
    cache, full = runtime.new_cache(1, 16), LayerPlan.full(5)

    def rows(tokens, start):
        where = Rows.of([0] * len(tokens), range(start, start + len(tokens)))
        return runtime.logits(runtime.run(runtime.embed(tokens), full, where, cache)[0])

    rows(TOKENS[:4], 0)
    rows([50, 51, 52, 53], 4)  # rejected
    got = rows(TOKENS[4:6], 4)
    assert np.abs(got - forward(runtime, TOKENS[:6])[0][4:]).max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [1, 2, 3, 16, 40])
def test_products_equal_torchs_own(dtype, rows):
    """Guards the faster routes: whatever the number of rows, the product is the same up to rounding."""
    torch.manual_seed(0)
    x, weight, bias = (
        torch.randn(rows, 48).to(dtype),
        torch.randn(32, 48).to(dtype),
        torch.randn(32).to(dtype),
    )
    want = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    got = linear(x, weight, bias)
    assert got.dtype == dtype
    assert got.shape == (rows, 32)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float64: 1e-12}[dtype]
    assert (got.double() - want).abs().max() < tolerance


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lower_precisions_stay_close_to_float64(dtype):
    """Guards the precision route as a whole; logits come back in float32."""
    want, _ = forward(tiny_runtime(), TOKENS)
    got, _ = forward(tiny_runtime(dtype=dtype), TOKENS)
    assert got.dtype == np.float32
    assert np.abs(got - want).max() < {"float32": 1e-3, "bfloat16": 1.0}[dtype]


def test_cache_bytes_are_those_of_the_formula():
    """Guards the memory claim: 2 * L * KV heads * head width numbers per token, and nothing else."""
    runtime = tiny_runtime()
    assert runtime.new_cache(3, 10).nbytes == 3 * 10 * runtime.config.kv_values_per_token * 8


def test_a_cache_that_does_not_fit_is_one_clear_error():
    """Guards a context far beyond memory: not torch's RuntimeError, but a line that says what to do."""
    with pytest.raises(OutOfMemoryError, match="ask for fewer tokens"):
        tiny_runtime().new_cache(1, 2**50)


def test_plans():
    """Guards the one concept behind exits and skips: what runs, what is shared, what it costs."""
    full = LayerPlan.full(4)
    assert (full.shared_prefix, full.row_layers, str(full)) == (4, 4, "full 4")
    early = LayerPlan.exit_at(4, 3)
    assert (early.shared_prefix, early.row_layers, str(early)) == (3, 3, "exit 3/4")
    gapped = LayerPlan.skipping(4, attention=[2], mlp=[1])
    assert (gapped.shared_prefix, gapped.row_layers, str(gapped)) == (1, 3, "skip attention 2 mlp 1 of 4")
    assert [*full.span(1, 2).steps] == [(1, "attention"), (1, "mlp")]
    for wrong in (0, 4, -1, 99):
        with pytest.raises(OptionError, match="it must be 1 to 3"):
            LayerPlan.exit_at(4, wrong)
    with pytest.raises(OptionError, match="cannot skip mlp"):
        LayerPlan.skipping(4, mlp=[4])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_the_caller_has_switched_on_in_torch_changes_nothing(dtype):
    """Guards autocast, which failed at the cache, and a cache made in inference mode and written later."""
    runtime = tiny_runtime(dtype=dtype)
    (plain,) = run(runtime, [[5, 17, 3]], new_tokens=12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (text,) = run(runtime, [[5, 17, 3]], "early_exit", {"exit_layer": 3}, new_tokens=12)
    assert text.tokens == plain.tokens
    with torch.inference_mode():
        cache = runtime.new_cache(1, 8)
        longer = cache.longer(16)
    context = Context(runtime, longer)
    text = Text(0, 0, [5, 17, 3], 15, Sampling(), Chance(0), lambda _: False)
    for _ in decode(context, [text], drafters.create("plain", runtime.config, {})):
        pass
    assert text.tokens == plain.tokens
    runtime.keep(cache, Rows.trees([0, 0], [1, 2], [-1, 0]))
    assert not cache.keys[0].is_inference()
