"""Drafts that every family is tested with, whatever runs it: exits, gaps, chains and trees."""

from __future__ import annotations

from lossless_table import Bush

from selfspec.drafters.base import Drafter, DraftOptions
from selfspec.types import Draft, LayerPlan

SIZE = 101  # of the vocabulary of every family's model


class Gapped(Drafter):
    """Drafts with layers left out in the middle; what its first layer computes is the target's own."""

    name = "gapped"
    gap = LayerPlan.skipping(4, attention=[2], mlp=[1, 2])

    def propose(self, context, texts, gammas):
        made = {text: [] for text in texts}
        for depth in range(max(gammas)):
            growing = [text for text, gamma in zip(texts, gammas, strict=True) if depth < gamma]
            last = [made[text][-1] if depth else text.pending for text in growing]
            found = context.runtime.logits(context.step(self.gap, growing, last, depth))
            for text, row in zip(growing, found, strict=True):
                made[text].append(int(row.argmax()))
        return [Draft(tuple(tokens)) for tokens in made.values()]


def mixed(texts):
    """Drafts that are right for a while and then wrong, at every place of the texts: accepted and rolled back."""

    def script(tokens, gamma):
        text = next(text for text in texts if text[: len(tokens)] == tokens)
        right = text[len(tokens) : len(tokens) + gamma]
        keep = len(tokens) % (gamma + 1)
        return right[:keep] + [(token + 1) % SIZE for token in right[keep:]]

    return script


# from a model's config and plain decoding's texts to what `doubles.run` takes
DRAFTS = {
    "exit 1": lambda config, texts: ("early_exit", {"exit_layer": 1, "gamma": 5}),
    "exit 3, comb": lambda config, texts: ("early_exit", {"exit_layer": 3, "gamma": 4, "siblings": 2}),
    "gapped": lambda config, texts: (Gapped(DraftOptions(gamma=4), config), {}),
    "mixed": lambda config, texts: ("scripted", {"script": mixed(texts), "gamma": 6}),
    "bush": lambda config, texts: (Bush(config, texts, gamma=6, exit_layer=2), {}),
}
KNOWN = {"mixed", "bush"}  # those that know the texts, so that some of their tokens are accepted
