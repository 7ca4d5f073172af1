"""Sampling at its edges: what mutants of the module would change (docs/hardening.md)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from selfspec.sampling import score

BACKENDS = pytest.mark.parametrize("backend", [np.asarray, torch.from_numpy])


@BACKENDS
def test_a_score_is_of_the_raw_law(backend):
    """Guards log probabilities: of the token asked for, of the likeliest in order, ties to the lower id."""
    logits = np.array([1.0, 3.0, 3.0, -math.inf, 2.0], dtype=np.float32)
    logs = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    found = score(backend(logits), 4, 3)
    assert found[0] == pytest.approx(logs[4], abs=1e-12)
    assert [token for token, _ in found[1]] == [1, 2, 4]
    assert [value for _, value in found[1]] == pytest.approx(logs[[1, 2, 4]].tolist(), abs=1e-12)
    assert score(backend(logits), 1, 0)[1] == ()
    assert len(score(backend(logits), 1, 9)[1]) == 5
