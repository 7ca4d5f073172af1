"""A decoder of eight layers that has learned a small language with layers left out at random: some are redundant.

The language: the next token is given by the last two, with some noise, so that layers must look back as well as
look up. Sub-layers are left out in training (LayerSkip's layer dropout, arXiv 2404.16710), some more often than
others: which of them a draft can do without is a question with an answer, but not one that is told.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from doubles import TINY

from selfspec.model.families import weight_shapes
from selfspec.runtime.rotary import inverse_frequencies
from selfspec.runtime.torch import TorchRuntime

VOCAB, LAYERS = 12, 8
NOISE = 0.05
STEPS, BATCH, LENGTH = 220, 4, 192
# how often a sub-layer of each layer is left out in training; 1.0: always, it adds nothing
DROPPED = {
    "attention": (1.0, 0.0, 0.5, 0.5, 0.1, 0.5, 0.5, 1.0),
    "mlp": (1.0, 0.5, 0.0, 0.5, 0.3, 0.1, 0.5, 1.0),
}


def config():
    return replace(
        TINY,
        num_layers=LAYERS,
        hidden_size=32,
        intermediate_size=32,
        vocab_size=VOCAB,
        context_length=1024,
        dtype="float32",
    )


@cache
def table():
    """The likeliest next token [V, V] after two."""
    return np.random.default_rng(7).integers(VOCAB, size=(VOCAB, VOCAB))


def texts(count, length, seed):
    """Texts [count, length] of the language."""
    random = np.random.default_rng(seed)
    found = random.integers(VOCAB, size=(count, length))
    noisy = random.random((count, length)) < NOISE
    for i in range(2, length):
        found[:, i] = np.where(noisy[:, i], found[:, i], table()[found[:, i - 2], found[:, i - 1]])
    return found


class Decoder:
    """The arithmetic of the Llama type, with gradients."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.config = config()
        self.weights = {}
        for name, shape in weight_shapes(self.config).items():
            weight = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator)
            scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
            self.weights[name] = (weight * scale).requires_grad_()
        angles = torch.outer(
            torch.arange(LENGTH), torch.from_numpy(inverse_frequencies(self.config.layer(0).rope, 8))
        )
        self.cos, self.sin = (part.repeat(1, 2) for part in (angles.cos(), angles.sin()))

    def logits(self, tokens, left_out):
        x = self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(LAYERS):
            for part in ("attention", "mlp"):
                if (layer, part) not in left_out:
                    x = x + getattr(self, part)(x, f"model.layers.{layer}.")
        return F.linear(self.norm(x, "model.norm.weight"), self.weights["lm_head.weight"])

    def norm(self, x, name):
        return F.rms_norm(x, (x.shape[-1],), self.weights[name], self.config.norm_eps)

    def attention(self, x, layer):
        x = self.norm(x, layer + "input_layernorm.weight")
        q, k, v = (
            F.linear(x, self.weights[f"{layer}self_attn.{name}_proj.weight"]).unflatten(-1, (-1, 8)).transpose(1, 2)
            for name in "qkv"
        )
        q, k = (part * self.cos + torch.cat((-part[..., 4:], part[..., :4]), -1) * self.sin for part in (q, k))
        k, v = (part.repeat_interleave(2, dim=1) for part in (k, v))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(found.transpose(1, 2).flatten(2), self.weights[layer + "self_attn.o_proj.weight"])

    def mlp(self, x, layer):
        x = self.norm(x, layer + "post_attention_layernorm.weight")
        gate, up = (F.linear(x, self.weights[f"{layer}mlp.{name}_proj.weight"]) for name in ("gate", "up"))
        return F.linear(F.silu(gate) * up, self.weights[layer + "mlp.down_proj.weight"])


def trained(seed=2):
    """The weights after training: seconds on one core."""
    decoder = Decoder(seed)
    random = np.random.default_rng(seed)
    tokens = torch.from_numpy(texts(STEPS * BATCH, LENGTH, seed=1)).view(STEPS, BATCH, LENGTH)
    optimizer = torch.optim.AdamW(
        decoder.weights.values(), lr=1e-2, weight_decay=0.0, betas=(0.9, 0.98), fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS, pct_start=0.1)
    for step, batch in enumerate(tokens):
        share = min(1.0, 2 * step / STEPS)
        left_out = {
            (layer, part)
            for part, rates in DROPPED.items()
            for layer, rate in enumerate(rates)
            if rate == 1.0 or random.random() < rate * share
        }
        logits = decoder.logits(batch, left_out)[:, 1:-1]
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    for part, name in (("attention", "self_attn.o_proj"), ("mlp", "mlp.down_proj")):
        for layer, rate in enumerate(DROPPED[part]):
            if rate == 1.0:
                decoder.weights[f"model.layers.{layer}.{name}.weight"].detach().zero_()
    return {name: weight.detach() for name, weight in decoder.weights.items()}, float(loss.detach())


def runtime(weights):
    return TorchRuntime(config(), weights)
