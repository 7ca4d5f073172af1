"""Heads that nobody trained: random weights of the right shapes."""

from __future__ import annotations

import numpy as np

from selfspec.model.head_file import LM_HEAD, HeadFacts, HeadFile, weight_shapes


def random_facts(kind="eagle", form="layer", **changes):
    """Facts of a small head; 32 wide, 4 heads of 8 over 2, as the tiny models are."""
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "intermediate_size": 48}
    if form in ("none", "linear"):
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


def nearly_untrained(runtime, facts, vocabulary=None):
    """An exit head that changes little, before the target's own final norm: it is right as often as its exit."""
    head = random_head(facts, vocabulary=vocabulary, scale=0.03)
    (norm,) = (np.asarray(weight) for name, weight in runtime.weights.items() if name == "model.norm.weight")
    return HeadFile(facts, {**head.weights, "norm.weight": norm.astype(np.float32)}, head.vocabulary)


def fitted_eagle(runtime, facts, texts, drafted=3):
    """An eagle head whose LM head is fitted, in closed form, to what follows in ``texts``, drafts included."""
    import head_oracle as oracle

    tokens = sorted({token for text in texts for token in text})
    head = random_head(facts, seed=1, vocabulary=tokens, own_head=True)
    embedding = np.asarray(runtime.embed(list(range(runtime.config.vocab_size))))
    rows, wanted = [], []
    for text in texts:
        states = np.concatenate(oracle.target_states(runtime, text, facts.taps), axis=1)
        features = states @ head.weights["fc.weight"].astype(np.float64).T
        for end in range(1, len(text) - 1):
            known = features[:end]
            for step in range(min(drafted, len(text) - 1 - end)):
                g = oracle.eagle_states(known, embedding[text[1 : end + step + 1]], head)
                rows.append(oracle.norm(g[-1], head.weights["norm.weight"], facts.eps))
                wanted.append(np.asarray(tokens) == text[end + step + 1])
                known = np.concatenate([known, g[-1:]])
    a, b = np.stack(rows), 8.0 * np.stack(wanted)
    fitted = np.linalg.solve(a.T @ a + 1e-3 * np.eye(a.shape[1]), a.T @ b).T
    return HeadFile(facts, {**head.weights, LM_HEAD: fitted.astype(np.float32)}, head.vocabulary)
