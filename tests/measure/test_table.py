"""The table of logits behind the model's law: the real loop over it is the real loop over the model."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import run, tiny_runtime

from selfspec.measure.table import Table
from selfspec.types import Sampling

PROMPT, NEW = [5, 17, 3, 42, 5, 17], 12


@pytest.mark.parametrize("prompt", [PROMPT, [7]])
@pytest.mark.parametrize(
    ("drafter", "options"),
    [
        ("plain", {}),
        ("ngram", {"min_ngram": 1}),
        ("early_exit", {"exit_layer": 2}),
        ("early_exit", {"exit_layer": 4, "siblings": 2}),
    ],
)
def test_texts_over_the_table_are_the_models(prompt, drafter, options):
    """Guards cells, trees, resumed rows and roll-back in the table."""
    runtime = tiny_runtime()
    for sampling in (Sampling(), Sampling(1.2, top_k=5)):
        asked = {"new_tokens": NEW, "sampling": sampling, "seed": 3}
        (ours,) = run(Table(runtime, prompt, NEW), [prompt], drafter, options, **asked)
        (theirs,) = run(runtime, [prompt], drafter, options, **asked)
        assert ours.tokens == theirs.tokens


def test_each_text_is_run_once():
    """Guards the point of it: the second look-up costs no pass."""
    runtime = tiny_runtime()
    table = Table(runtime, PROMPT, 2)
    first = table.after([*PROMPT, 4])
    runtime.run = None
    assert np.array_equal(table.after([*PROMPT, 4]), first)
