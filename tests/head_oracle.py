"""Drafts of trained heads by definition: NumPy in float64, every row computed anew for every token."""

from __future__ import annotations

import numpy as np

from selfspec.model.head_file import LM_HEAD, HeadFile
from selfspec.types import LayerPlan, Rows, SubLayer


def norm(x, weight, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def frequencies(facts):
    """Inverse frequencies of the rotary embedding; slow ones divided by a factor (Llama 3.1), or all of them."""
    plain = facts.rope_theta ** (-np.arange(0, facts.head_dim, 2) / facts.head_dim)
    rope = facts.rope
    if rope.get("kind") == "linear":
        return plain / rope["factor"]
    if rope.get("kind") == "llama3":
        turns = rope["original_context"] * plain / (2 * np.pi)
        kept = ((turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])).clip(0, 1)
        return plain * (kept + (1 - kept) / rope["factor"])
    return plain


def turned(x, inverse):
    """Rotary embedding of [rows, heads, width] at positions 0, 1, ..., first half with second half."""
    rows, _, width = x.shape
    angles = np.arange(rows)[:, None] * inverse
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., : width // 2], x[..., width // 2 :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(x, head: HeadFile):
    facts, prefix = head.facts, head.facts.prefix
    w = {n: head.weights[f"{prefix}self_attn.{n}_proj.weight"].astype(np.float64) for n in "qkvo"}
    rows, width = len(x), facts.head_dim
    q = (x @ w["q"].T).reshape(rows, facts.num_heads, width)
    k = (x @ w["k"].T).reshape(rows, facts.num_kv_heads, width)
    if facts.qk_norm:
        q, k = (
            norm(a, head.weights[f"{prefix}self_attn.{n}_norm.weight"], facts.eps) for a, n in ((q, "q"), (k, "k"))
        )
    q, k = turned(q, frequencies(facts)), turned(k, frequencies(facts))
    v = (x @ w["v"].T).reshape(rows, facts.num_kv_heads, width)
    each, out = facts.num_heads // facts.num_kv_heads, np.zeros_like(q)
    for h in range(facts.num_heads):
        scores = q[:, h] @ k[:, h // each].T / np.sqrt(width)
        scores[np.triu_indices(rows, 1)] = -np.inf
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, h] = scores / scores.sum(axis=1, keepdims=True) @ v[:, h // each]
    return out.reshape(rows, -1) @ w["o"].T


def mlp(x, head: HeadFile):
    prefix = head.facts.prefix
    x = norm(x, head.weights[f"{prefix}post_attention_layernorm.weight"], head.facts.eps)
    gate, up, down = (
        head.weights[f"{prefix}mlp.{n}_proj.weight"].astype(np.float64) for n in ("gate", "up", "down")
    )
    inner = x @ gate.T
    return (inner / (1 + np.exp(-inner)) * (x @ up.T)) @ down.T


def exit_states(states, head: HeadFile):
    """G of all rows, from their states after k layers [rows, d]."""
    weights, facts = head.weights, head.facts
    if facts.form == "none":
        return states
    if facts.form == "linear":
        return states + states @ weights["transform.weight"].astype(np.float64).T
    h = states + attention(norm(states, weights["layer.input_layernorm.weight"], facts.eps), head)
    return h + mlp(h, head) if facts.form == "layer" else h


def eagle_states(features, embedded, head: HeadFile):
    """G of all rows, from what stands for their features [rows, d], and the tokens after them [rows, d]."""
    weights, eps = head.weights, head.facts.eps
    token = norm(embedded, weights["midlayer.input_layernorm.weight"], eps)
    feature = norm(features, weights["midlayer.hidden_norm.weight"], eps)
    h = features + attention(np.concatenate([token, feature], axis=1), head)
    return h + mlp(h, head)


def medusa_states(states, head: HeadFile, index, runtime):
    """What the LM head of head ``index`` reads, from what leaves the target's last layer [rows, d]."""
    weight = runtime.weights["model.norm.weight"].numpy().astype(np.float64)
    x = norm(states, weight, runtime.config.norm_eps)
    for j in range(head.facts.blocks):
        matrix, bias = (head.weights[f"{index}.{j}.linear.{n}"].astype(np.float64) for n in ("weight", "bias"))
        inner = x @ matrix.T + bias
        x = x + inner / (1 + np.exp(-inner))
    return x


def medusa_logits(runtime, head: HeadFile, tokens):
    """What each head says after ``tokens``, of which the last is pending: [heads, V]."""
    (states,) = target_states(runtime, tokens[:-1], head.facts.taps)
    ids = np.arange(runtime.config.vocab_size) if head.vocabulary is None else head.vocabulary
    out = np.full((head.facts.drafts, runtime.config.vocab_size), -np.inf)
    for i, name in enumerate(head.facts.lm_heads):
        own = head.weights.get(name)
        rows = runtime.weights["lm_head.weight"].numpy()[ids] if own is None else own
        out[i, ids] = medusa_states(states[-1:], head, i, runtime)[0] @ rows.astype(np.float64).T
    return out


def logits(g, head: HeadFile, runtime):
    """Over the whole vocabulary [V]: what cannot be drafted is -inf. Of one row [d]."""
    lm_head = head.weights[LM_HEAD] if LM_HEAD in head.weights else runtime.weights["lm_head.weight"].numpy()
    ids = np.arange(runtime.config.vocab_size) if head.vocabulary is None else head.vocabulary
    rows = lm_head if LM_HEAD in head.weights else lm_head[ids]
    out = np.full(runtime.config.vocab_size, -np.inf)
    out[ids] = norm(g, head.weights["norm.weight"], head.facts.eps) @ rows.astype(np.float64).T
    return out


def target_states(runtime, tokens, layers):
    """The states [tokens, d] after each of ``layers``, of a fresh prefill."""
    rows, cache = Rows.of([0] * len(tokens), range(len(tokens))), runtime.new_cache(1, len(tokens))
    plan = LayerPlan.full(runtime.config.num_layers)
    taps = [SubLayer(layer - 1) for layer in layers]
    _, seen = runtime.run(runtime.embed(tokens, rows.positions), plan, rows, cache, taps)
    return [np.asarray(seen[tap]) for tap in taps]


def draft_logits(runtime, head: HeadFile, tokens, count, origin=0):
    """Greedy drafts after ``tokens``: for each of ``count`` tokens its logits [V].

    The head knows nothing of the rows before ``origin``.
    """
    if head.facts.kind == "medusa":
        return [*medusa_logits(runtime, head, tokens)[:count]]
    said, drafted = [], []
    if head.facts.kind == "exit_head":
        for _ in range(count):
            (states,) = target_states(runtime, [*tokens, *drafted], head.facts.taps)
            said.append(logits(exit_states(states[origin:], head)[-1], head, runtime))
            drafted.append(int(said[-1].argmax()))
        return said
    embedding = runtime.weights["model.embed_tokens.weight"].numpy() * runtime.config.embedding_scale
    known = target_states(runtime, tokens[:-1], head.facts.taps)
    features = np.concatenate(known, axis=1)[origin:] @ head.weights["fc.weight"].astype(np.float64).T
    for _ in range(count):
        follow = [*tokens[origin + 1 :], *drafted]
        g = eagle_states(features, embedding[follow], head)
        said.append(logits(g[-1], head, runtime))
        drafted.append(int(said[-1].argmax()))
        features = np.concatenate([features, g[-1:]])
    return said
