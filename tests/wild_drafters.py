"""Drafters, and what decides over them, that do anything that they may: whatever they do, no text may change."""

from __future__ import annotations

import numpy as np
from doubles import TINY, Host

from selfspec.drafters.adaptive_exit import AdaptiveExit
from selfspec.drafters.base import Drafter, DraftOptions
from selfspec.drafters.early_exit import EarlyExitOptions
from selfspec.drafters.learning_head import LearningHead
from selfspec.drafters.shadow import Choice, ExitControl
from selfspec.drafters.suffix import Suffix, SuffixOptions
from selfspec.learning.learner import Offered
from selfspec.model.head_file import HeadFile
from selfspec.types import Draft, Rows

SIZE = TINY.vocab_size


def script(kind, texts):
    """Drafts of known acceptance: always right, always wrong, right for some tokens only."""

    def right(tokens, gamma):
        text = next((text for text in texts if text[: len(tokens)] == tokens), [])
        return text[len(tokens) : len(tokens) + gamma]

    def wrong(tokens, gamma):
        return [(token + 1) % SIZE for token in right(tokens, gamma)]

    def mixed(tokens, gamma):
        cut = len(tokens) % (gamma + 1)
        return right(tokens, gamma)[:cut] + wrong(tokens, gamma)[cut:]

    return {"right": right, "wrong": wrong, "mixed": mixed}[kind]


class Bush(Drafter):
    """Random trees that hold the right tokens somewhere; with ``exit_layer``, the first rows bring their states."""

    name = "bush"

    def __init__(self, config, texts, *, gamma=4, exit_layer=0, seed=0):
        super().__init__(DraftOptions(gamma=gamma), config)
        self.expected = texts
        self.exit_layer = exit_layer
        self.random = np.random.default_rng(seed)

    def propose(self, context, texts, gammas):
        return [self.tree(context, text, gamma) for text, gamma in zip(texts, gammas, strict=True)]

    def tree(self, context, text, gamma):
        at = len(text.tokens)
        right = self.expected[text.index][at : at + gamma]
        tokens, parents, depths, on_path = [], [], [], [-1]
        for _ in range(self.random.integers(0, min(12, text.room()) + 1)):
            parent = int(self.random.integers(-1, len(tokens)))
            if self.random.random() < 0.5:
                parent = on_path[-1]
            depth = 0 if parent < 0 else depths[parent] + 1
            if depth >= min(gamma, len(right)):
                continue
            holds = parent == on_path[-1] and self.random.random() < 0.8
            tokens.append(right[depth] if holds else int(self.random.integers(SIZE)))
            parents.append(parent)
            depths.append(depth)
            if parent == on_path[-1] and tokens[-1] == right[depth]:
                on_path.append(len(tokens) - 1)
        return self.resumed(context, text, tuple(tokens), tuple(parents))

    def resumed(self, context, text, tokens, parents):
        if not self.exit_layer:
            return Draft(tokens, parents=parents)
        kept = int(self.random.integers(1, len(tokens) + 2))
        start = len(text.tokens) - 1
        rows = Rows.trees(
            [text.slot] * kept, range(start, start + kept), [-1, *(p + 1 for p in parents[: kept - 1])]
        )
        hidden = context.runtime.embed([text.pending, *tokens[: kept - 1]], rows.positions)
        hidden, _ = context.runtime.run(hidden, context.full.span(0, self.exit_layer), rows, context.cache)
        return Draft(tokens, None, hidden, self.exit_layer, parents)


class Told(Suffix):
    """Look-up in a prediction that is right in most places, and in the text."""

    def __init__(self, config, texts, **options):
        super().__init__(SuffixOptions(**options), config)
        self.expected = texts

    def begin(self, text):
        answer = self.expected[text.index][text.prompt_length :]
        text.prediction = [(token + 1) % SIZE if i % 5 == 3 else token for i, token in enumerate(answer)]
        super().begin(text)


class Whimsical(ExitControl):
    """Learns as it should, and then leaves anywhere, and drafts as much as it may."""

    def __init__(self, seed, *known):
        super().__init__(*known)
        self.random = np.random.default_rng(seed)

    def threshold(self, layer):
        return self.random.choice([0.0, 0.5, 0.9, 0.99, 1.1]) + 0.0 * super().threshold(layer)

    def choose(self, most):
        super().choose(most)
        ladders = list(self._tallies)
        return Choice(ladders[self.random.integers(len(ladders))], most, 1.0)


class Climber(AdaptiveExit):
    """Adaptive exits in the hands of whim: rows of one draft end at any layers."""

    def __init__(self, config, texts, *, seed=0, **options):
        super().__init__(EarlyExitOptions(exit_layer="adaptive", **options), config)
        self.seed = seed

    def control(self):
        return Whimsical(self.seed, self.candidates, self._costs)


class Taught(Host):
    """An engine whose controller knows all kinds of draft, thinks something of each, and takes them for cheap."""

    def __init__(self, target, seed):
        super().__init__(target, {})
        self.random = np.random.default_rng(seed)

    def kept(self, key, make):
        made = make()
        if key[0] != "auto":
            return made
        for record in made.records:
            good = self.random.uniform(0.5, 1.0)
            record.judged(True)
            record.step.learn(100.0 * self.random.uniform(0.0, 0.2), 100.0)
            for depth in range(8):
                for is_right in [True, *(self.random.random(12) < good), True]:
                    record.counts.learn(depth, bool(is_right))
        made.probes.balance = 100.0
        return made


class Erratic:
    """A clock whose steps have nothing to do with the work, so that whoever decides by it decides anything."""

    def __init__(self, seed, costs):
        self.random, self.now = np.random.default_rng(seed), 0.0
        costs.__init__()
        for rows in [1, 4, 8, 16] * 20:
            costs.observe(rows, 1.0 + 0.05 * rows)

    def __call__(self):
        self.now += self.random.exponential()
        return self.now


class Fickle(LearningHead):
    """A head that is another one in every round, as if learning kept whatever it tried; beside it, one learns."""

    name = "fickle"

    def __init__(self, config, host, seed=0, **options):
        given = {"exit_layer": 4, "learn": True, "learn_share": 1.0, "learn_memory": 1} | options
        options = EarlyExitOptions(**given)
        super().__init__(options, config, options.exit_layer)
        self.bind(host)
        self.seed, self.drafted_with = seed, []

    def refine(self, context, texts, gammas, drafts):
        self.exchange(sum(len(text.tokens) for text in texts))
        self.drafted_with.append(self._learner.current)
        return super().refine(context, texts, gammas, drafts)

    def exchange(self, number):
        """Offer another head."""
        worker = self._learner._worker
        random = np.random.default_rng([self.seed, number])
        size = self.config.vocab_size
        tokens = np.flatnonzero(random.random(size) < 0.9) if random.random() < 0.7 else None
        tokens = None if tokens is not None and not len(tokens) else tokens
        head = worker.current.head
        moved = random.normal(0, 0.03, (self.config.hidden_size,) * 2).astype(np.float32)
        head = HeadFile(head.facts, {**head.weights, "transform.weight": moved}, tokens)
        worker.current = Offered(head, worker._attach(head))
