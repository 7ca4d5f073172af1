"""Exits against the target, in one pass: the same as asking each of them at every place."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import run, tiny_core, tiny_runtime

from selfspec.context import Context
from selfspec.measure import agreement
from selfspec.measure.agreement import measure_agreement
from selfspec.measure.passes import fill
from selfspec.types import LayerPlan, Rows, Sampling

PROMPT = [3, 1, 4, 1]


def law(runtime, tokens, k, temperature):
    """Softmax of the logits after ``tokens``, of the first k layers run alone; greedy is the one-hot."""
    layers = runtime.config.num_layers
    plan = LayerPlan.full(layers) if k == layers else LayerPlan.exit_at(layers, k)
    cache = runtime.new_cache(1, len(tokens))
    rows = Rows.of([0] * len(tokens), range(len(tokens)))
    logits = np.asarray(runtime.logits(runtime.run(runtime.embed(tokens), plan, rows, cache)[0][-1:]))[0]
    if temperature == 0.0:
        return np.eye(len(logits))[logits.argmax()]
    masses = np.exp((logits - logits.max()).astype(float) / temperature)
    return masses / masses.sum()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("make", [tiny_runtime, lambda: tiny_core("fp32")], ids=["torch", "cpu"])
def test_ratios_and_overlaps_are_those_of_each_exit_alone(make, temperature, monkeypatch):
    """Guards α by layer: taps, rows and tokens belong together, across passes too."""
    monkeypatch.setattr(agreement, "_ROWS", 3)
    runtime = make()
    sampling = Sampling(temperature=temperature)
    (text,) = run(runtime, [PROMPT], new_tokens=8, sampling=sampling)
    answer, exits = text.tokens[len(PROMPT) :], [1, 3, 4]
    found = measure_agreement(runtime, PROMPT, answer, exits, sampling)
    assert found.ratios.shape == found.overlaps.shape == (3, 8)
    for place, token in enumerate(answer):
        before = [*PROMPT, *answer[:place]]
        p = law(runtime, before, 5, temperature)
        for i, k in enumerate(exits):
            q = law(runtime, before, k, temperature)
            assert found.overlaps[i, place] == pytest.approx(np.minimum(p, q).sum(), abs=1e-5)
            assert found.ratios[i, place] == pytest.approx(q[token] / p[token], rel=1e-4)
    assert 0.0 < found.overlaps.mean() < 1.0


def test_a_prompt_of_one_token_and_an_answer_of_one():
    """Guards the edges: nothing to fill, one row."""
    found = measure_agreement(tiny_runtime(), [5], [7], [2], Sampling(temperature=1.0))
    assert found.ratios.shape == (1, 1)


def test_filling_writes_what_a_prefill_writes():
    """Guards the cache that passes and agreements read: the next row says what it says after chunks."""
    runtime, tokens = tiny_runtime(), list(range(10))
    filled, written = runtime.new_cache(1, 11), runtime.new_cache(1, 11)
    fill(runtime, filled, tokens)
    Context(runtime, written, prefill_rows=4).write(0, tokens)
    said = []
    for cache in (filled, written, runtime.new_cache(1, 11)):
        hidden, _ = runtime.run(runtime.embed([10]), LayerPlan.full(5), Rows.of([0], [10]), cache)
        said.append(np.asarray(runtime.logits(hidden)))
    assert np.allclose(said[0], said[1], atol=1e-12)
    assert not np.allclose(said[0], said[2])
