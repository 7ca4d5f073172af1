"""Drafts that every family is tested with, whatever runs it: exits, gaps, chains and trees."""

from __future__ import annotations

from wild_drafters import Bush

GAP = "attention 2 mlp 1,2"
SIZE = 101  # of the vocabulary of every family's model


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
    "gapped": lambda config, texts: ("layer_skip", {"skip": GAP, "gamma": 4}),
    "mixed": lambda config, texts: ("scripted", {"script": mixed(texts), "gamma": 6}),
    "bush": lambda config, texts: (Bush(config, texts, gamma=6, exit_layer=2), {}),
}
KNOWN = {"mixed", "bush"}  # those that know the texts, so that some of their tokens are accepted
