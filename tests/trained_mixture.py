"""A mixture of experts that has learned something: a language of phrases, in a few seconds."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from transformers import MixtralConfig, MixtralForCausalLM

PHRASES, WORDS = 24, 64
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "eos_token_id": None,
    "bos_token_id": None,
}


class Language:
    """Phrases of four to seven words; after each one of two others follows, the first of them nine times in ten."""

    def __init__(self, seed=0):
        random = np.random.default_rng(seed)
        self.phrases = [random.integers(0, WORDS, size=random.integers(4, 8)).tolist() for _ in range(PHRASES)]
        self.after = [random.choice(PHRASES, size=2, replace=False).tolist() for _ in range(PHRASES)]

    def text(self, random, length):
        words, phrase = [], int(random.integers(PHRASES))
        while len(words) < length:
            words += self.phrases[phrase]
            phrase = self.after[phrase][int(random.random() < 0.1)]
        return words[:length]


@cache
def trained_mixture(steps=150):
    """A Mixtral of two layers, eight experts and two of them a token, in float64; and its language."""
    language, random = Language(), np.random.default_rng(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MixtralForCausalLM(MixtralConfig(**SIZES))
        model.set_experts_implementation("eager")
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=steps)
        for _ in range(steps):
            tokens = torch.tensor([language.text(random, 33) for _ in range(16)])
            logits = model(tokens[:, :-1], use_cache=False).logits
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.double().eval(), language
