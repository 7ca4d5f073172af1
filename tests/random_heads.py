"""Heads that nobody trained: random weights of the right shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from selfspec.model.families import weight_shapes as weight_shapes_of
from selfspec.model.head_file import LM_HEAD, HeadFacts, HeadFile, weight_shapes


def random_facts(kind="eagle", form="layer", **changes):
    """Facts of a small head; 32 wide, 4 heads of 8 over 2, as the tiny models are."""
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "intermediate_size": 48}
    if form in ("none", "linear", "blocks"):
        sizes = {"drafts": 3, "blocks": 2} if form == "blocks" else {}
    taps = {"exit_head": (1,), "eagle": (1, 2, 3), "medusa": (5,)}.get(kind, (1,))
    facts = {"kind": kind, "form": form, "taps": taps, "hidden_size": 32}
    return HeadFacts(**facts | sizes | changes)


def random_head(facts, seed=0, vocabulary=None, own_head=False, scale=0.2):
    """A head with random weights; with ``own_head`` it has an LM head, for which ``vocabulary`` must be given."""
    random = np.random.default_rng(seed)
    shapes = weight_shapes(facts)
    if own_head:
        shapes |= dict.fromkeys(facts.lm_heads, (len(vocabulary), facts.hidden_size))
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


def fitted_medusa(runtime, facts, texts):
    """Medusa heads whose LM heads are fitted, in closed form, to what comes i + 2 places later in ``texts``."""
    import head_oracle as oracle

    tokens = sorted({token for text in texts for token in text})
    head = random_head(facts, seed=1, vocabulary=tokens, own_head=True)
    fitted = {}
    for i, name in enumerate(facts.lm_heads):
        rows, wanted = [], []
        for text in texts:
            (states,) = oracle.target_states(runtime, text, facts.taps)
            read = oracle.medusa_states(states, head, i, runtime)
            rows += [*read[: len(text) - 2 - i]]
            wanted += [np.asarray(tokens) == token for token in text[2 + i :]]
        a, b = np.stack(rows), 8.0 * np.stack(wanted)
        fitted[name] = np.linalg.solve(a.T @ a + 1e-3 * np.eye(a.shape[1]), a.T @ b).T.astype(np.float32)
    return HeadFile(facts, {**head.weights, **fitted}, head.vocabulary)


def random_module(runtime, seed=0, scale=0.2):
    """Tensors of a multi-token module for a runtime, by name: a layer as one of its own with attention."""
    import torch

    config = runtime.config
    kind = next(layer for layer in map(config.layer, range(config.num_layers)) if layer.attends)
    alone = replace(config, num_layers=1, layers=(kind,))
    shapes = {
        "mtp." + name.removeprefix("model."): shape
        for name, shape in weight_shapes_of(alone).items()
        if name.startswith("model.layers.")
    }
    d = config.hidden_size
    shapes |= {"mtp.fc.weight": (d, 2 * d), "mtp.norm.weight": (d,)}
    shapes |= dict.fromkeys(("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"), (d,))
    generator = torch.Generator().manual_seed(seed)
    made = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) * (scale if len(shape) > 1 else 0.1)
        for name, shape in shapes.items()
    }
    return {name: w if w.ndim > 1 or kind.norm == "rms_plus_one" else w + 1.0 for name, w in made.items()}


def fitted_module(runtime, texts):
    """One whose matrix is fitted, in closed form, to say what follows in ``texts``; its layer adds little."""
    import torch

    module = random_module(runtime, scale=0.02)
    config, plus = runtime.config, 1.0 if runtime.config.layer(0).norm == "rms_plus_one" else 0.0

    def normed(x, name):
        wide = x / torch.sqrt((x**2).mean(-1, keepdim=True) + config.norm_eps)
        return wide * (module[f"mtp.{name}.weight"] + plus)

    reads, wanted = [], []
    head = torch.from_numpy(runtime.weight("head")).double()
    for text in texts:
        states, embedded = final_states(runtime, text), torch.as_tensor(runtime.embed(text)).double()
        pairs = (normed(embedded[1:-1], "pre_fc_norm_embedding"), normed(states[:-2], "pre_fc_norm_hidden"))
        reads.append(torch.cat(pairs, dim=-1))
        wanted.append(head[text[2:]] / head.norm(dim=-1).mean())
    found = torch.linalg.lstsq(torch.cat(reads), torch.cat(wanted), driver="gelsd").solution
    return {**module, "mtp.fc.weight": found.T.contiguous()}


def final_states(runtime, tokens):
    """What the LM head reads of every token of a text [tokens, d]."""
    import head_oracle as oracle
    import torch

    (states,) = oracle.target_states(runtime, tokens, (runtime.config.num_layers,))
    weight = torch.from_numpy(runtime.weight("final_norm")).double()
    plus = 1.0 if runtime.config.layer(0).norm == "rms_plus_one" else 0.0
    x = torch.from_numpy(states).double()
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + runtime.config.norm_eps) * (weight + plus)
