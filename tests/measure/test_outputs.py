"""Whether answers are the same, and what rounding explains."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import tiny_runtime

from selfspec.measure import nearties
from selfspec.measure.outputs import compare

PROMPT = (3, 5, 8, 13, 21, 34, 2, 7)


@pytest.fixture
def noisy(monkeypatch):
    """Sets the gap of the two best logits and the difference that the row count makes."""

    def set_to(gap, noise):
        def logits(_runtime, tokens, span, _cache):
            out = np.zeros((span[1] - span[0], 61))
            if span[1] == len(tokens):
                out[-1, [2, 4]] = 1.0 + gap, 1.0
            return out + (noise if len(out) > 1 else 0.0)

        monkeypatch.setattr(nearties, "logits_of", logits)

    return set_to


def test_equal_answers_cost_no_pass():
    """Guards the common case: nothing is run."""
    assert compare(None, PROMPT, (1, 2), [1, 2]).kind == "equal"


@pytest.mark.parametrize(
    ("gap", "noise", "kind"),
    [(1e-5, 1e-5, "near-tie"), (1e-3, 1e-5, "different"), (1e-3, 2e-3, "different")],
)
def test_only_a_near_tie_excuses_a_difference(noisy, gap, noise, kind):
    """Guards the rule of docs/lossless.md: the gap at most twice the noise, and the noise itself small."""
    noisy(gap, noise)
    found = compare(tiny_runtime(dtype="float32"), PROMPT, (1, 2, 3), (1, 4, 3))
    assert (found.kind, found.at) == (kind, 1)
    assert (found.gap, found.noise) == pytest.approx((gap, noise), rel=1e-3)


def test_a_third_token_is_no_near_tie(noisy):
    """Guards the rule's two tokens: the best two may be close, and the answer neither of them."""
    noisy(1e-5, 1e-5)
    assert compare(tiny_runtime(dtype="float32"), PROMPT, (1, 2, 3), (1, 7, 3)).kind == "different"


def test_a_text_that_stops_short_is_different(noisy):
    """Guards ends: one of two equal beginnings is not a near-tie."""
    noisy(0.0, 1e-5)
    assert compare(tiny_runtime(dtype="float32"), PROMPT, (1, 2, 3), (1, 2)).kind == "different"


def test_a_wrong_token_is_seen_with_a_real_model():
    """Guards the measuring of gap and noise: in float64 row counts change next to nothing."""
    found = compare(tiny_runtime(), PROMPT, (1, 2, 3), (1, 4, 3))
    assert found.kind == "different"
    assert found.noise < 1e-9
    assert found.gap > 1e-6


def test_a_text_of_one_token_can_be_compared():
    """Guards short prompts: there is nothing to prefill before the rows."""
    assert compare(tiny_runtime(), (3,), (1,), (2,)).at == 0
