"""Heads that nobody trained: random weights of the right shapes."""

from __future__ import annotations

import numpy as np

from selfspec.model.head_file import LM_HEAD, HeadFacts, HeadFile, weight_shapes


def random_facts(kind="eagle", form="layer", **changes):
    """Facts of a small head; 32 wide, 4 heads of 8 over 2, as the tiny models are."""
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "intermediate_size": 48}
    if form == "linear":
        sizes = {}
    facts = {"kind": kind, "form": form, "taps": (1,) if kind == "exit_head" else (1, 2, 3), "hidden_size": 32}
    return HeadFacts(**facts | sizes | changes)


def random_head(facts, seed=0, vocabulary=None, own_head=False, scale=0.2):
    """A head with random weights; with ``own_head`` it has an LM head, for which ``vocabulary`` must be given."""
    random = np.random.default_rng(seed)
    shapes = weight_shapes(facts)
    if own_head:
        shapes[LM_HEAD] = (len(vocabulary), facts.hidden_size)
    weights = {
        name: (random.normal(0, scale, shape) if len(shape) == 2 else random.uniform(0.5, 1.5, shape)).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }
    return HeadFile(facts, weights, None if vocabulary is None else np.asarray(vocabulary, dtype=np.int64))
