"""Medusa (arXiv 2401.10774): heads side by side on the target's last state, one for each of the next tokens.

Head i reads what the target's LM head has read to say the pending token, and says the law of the token i + 1 places
after that. No head knows what the others say, so every token of one depth may follow every one of the depth before:
a draft is a chain, a comb, or with ``nodes`` a tree. The paper's tree is one for all texts, found from how often
each head's j-th best token was right; here the heads' own probabilities choose the paths anew in every round.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from selfspec.drafters.base import Drafter, Extra, option
from selfspec.drafters.steps import StepDrafter
from selfspec.drafters.trained import Attachment, HeadOptions, let_go, opened, parts_of
from selfspec.errors import OptionError
from selfspec.joining import concatenate
from selfspec.processors import active
from selfspec.types import MAX_GAMMA, MAX_SIBLINGS, Draft, Rows, on_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Host
    from selfspec.drafters.steps import Growing
    from selfspec.feeds import Feed
    from selfspec.model.config import ModelConfig
    from selfspec.runtime.attached import Likeliest
    from selfspec.types import Array, Integers


@dataclass(frozen=True)
class MedusaOptions(HeadOptions):
    """Options of `Medusa`."""

    nodes: int = option(
        0, "Draft the tree of so many tokens whose paths the heads find likeliest; 0 drafts a chain, or a comb."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.nodes <= MAX_GAMMA * (1 + MAX_SIBLINGS):
            raise OptionError(f"nodes is {self.nodes}; it must be 0 (no tree) to {MAX_GAMMA * (1 + MAX_SIBLINGS)}")
        if self.nodes and self.siblings:
            raise OptionError(
                f"siblings is {self.siblings} and nodes {self.nodes}; a tree has no comb: leave one out"
            )

    @property
    def most_tokens(self) -> int:
        """The most tokens that a draft can have."""
        least = max(self.gamma, 1)
        return max(super().most_tokens, least * -(-self.nodes // least) if self.gamma else 0)


class Medusa(StepDrafter):
    """Drafts with heads of the Medusa type."""

    Options = MedusaOptions
    options: MedusaOptions
    name = "medusa"
    summary = "trained heads say the next tokens at once from the model's last state (Medusa); extra weights"
    paper = "Medusa (arXiv 2401.10774)"
    pays = "with heads trained for the model, or published ones, where rows of a verification are cheap"
    usual_alpha = 0.4

    def __init__(self, options: MedusaOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        if options.head is None:
            raise OptionError("no head was given: train some (`selfspec train medusa`) and give their file as head")
        self._nodes = options.nodes
        self._file = opened(options.head, "medusa", config)
        self._heads = [Attachment(config, options, part) for part in parts_of(self._file)]

    def bind(self, host: Host) -> None:
        """Attach the heads."""
        for head in self._heads:
            head.bind(host)
        let_go(self._file)

    @property
    def taps(self) -> tuple[int, ...]:
        """The last layer."""
        return self._heads[0].head.facts.taps

    @property
    def step_share(self) -> float | None:
        """The weights of a head ÷ those of a pass."""
        return self._heads[0].share

    @property
    def runs(self) -> str:
        """The heads."""
        return f"{len(self._heads)} heads"

    @property
    def extra_bytes(self) -> Extra:
        """The heads, and states that waited."""
        brought = [head.extra_bytes for head in self._heads]
        return Extra(sum(extra.weights for extra in brought), brought[0].kv)

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """Trees where asked for and nothing changes probabilities along a path, else chains with leaves.

        Nothing where the last state of a text is unknown.
        """
        known = [context.feeds.of(text.slot, self).is_read_to(len(text.tokens) - 1) for text in texts]
        most = [min(g, len(self._heads)) if one else 0 for g, one in zip(gammas, known, strict=True)]
        branches = [self._nodes > 0 and not active(text.sampling.for_drafts) for text in texts]
        chains = [0 if one else gamma for gamma, one in zip(most, branches, strict=True)]
        found = super().refine(context, texts, chains, [Draft()] * len(texts))
        trees = [i for i, one in enumerate(branches) if one and min(most[i], self.options.gamma) > 0]
        if trees:
            depths = [min(most[i], self.options.gamma) for i in trees]
            for i, tree in zip(trees, self._trees(context, [texts[i] for i in trees], depths), strict=True):
                found[i] = tree
        return found

    def refine(
        self, context: Context, texts: Sequence[Text], gammas: Sequence[int], drafts: Sequence[Draft]
    ) -> list[Draft]:
        """What was proposed stands: the heads know nothing of it. They draft for the rest."""
        return Drafter.refine(self, context, texts, gammas, drafts)

    def read(self, context: Context, feed: Feed) -> None:  # noqa: ARG002
        """Keep the last of the states that wait."""
        _, _, states = self._heads[0].taken(feed, len(feed))
        feed.tail = self._heads[0].attached.features(states[-1:])

    def step(self, context: Context, growing: Sequence[Growing]) -> Array | Sequence[Array | Likeliest]:
        """What the head of this depth says of each text."""
        head, texts = self._heads[growing[0].depth], [chain.text for chain in growing]
        return head.said(growing, self._ran(context, head, texts, self._read(context, texts)))

    def _read(self, context: Context, texts: Sequence[Text]) -> Array:
        """What the heads read of each text [T, d]."""
        feeds = [context.feeds.of(text.slot, self) for text in texts]
        for feed in feeds:
            if len(feed):
                self.read(context, feed)
        return concatenate([feed.tail for feed in feeds])

    def _ran(self, context: Context, head: Attachment, texts: Sequence[Text], entering: Array) -> Array:
        rows = Rows.of([text.slot for text in texts], [len(text.tokens) - 2 for text in texts])
        return head.run(context, entering, [0] * len(texts), rows)

    def _trees(self, context: Context, texts: Sequence[Text], depths: Sequence[int]) -> list[Draft]:
        """The likeliest paths of each text; their tokens are chosen, not drawn."""
        entering, said = self._read(context, texts), []
        for head in self._heads[: max(depths)]:
            logits = on_host(head.attached.logits(self._ran(context, head, texts, entering)))
            said.append([_likeliest(row, self._nodes, head.attached.vocabulary) for row in logits])
        wanted = enumerate(zip(texts, depths, strict=True))
        return [self._tree(text, [step[i] for step in said[:depth]]) for i, (text, depth) in wanted]

    def _tree(self, text: Text, levels: Sequence[_Level]) -> Draft:
        """Nodes in the falling order of their paths' probabilities, so that parents come first."""
        most, least = min(self._nodes, text.room()), self._stops[text].threshold
        waiting = [(-float(levels[0].logs[0]), 0, -1, 0)]  # of a path, its depth, its parent, its rank there
        tokens: list[int] = []
        parents: list[int] = []
        while waiting and len(tokens) < most:
            cost, depth, parent, rank = heapq.heappop(waiting)
            if math.exp(-cost) < least:
                break
            level, node = levels[depth], len(tokens)
            tokens.append(int(level.tokens[rank]))
            parents.append(parent)
            if rank + 1 < len(level.tokens):
                beside = cost + float(level.logs[rank] - level.logs[rank + 1])
                heapq.heappush(waiting, (beside, depth, parent, rank + 1))
            if depth + 1 < len(levels) and tokens[-1] not in self.config.eos_token_ids:
                heapq.heappush(waiting, (cost - float(levels[depth + 1].logs[0]), depth + 1, node, 0))
        return Draft(tuple(tokens), parents=tuple(parents))


class _Level(NamedTuple):
    """The likeliest tokens of one depth, in falling order, and the logarithms of their probabilities."""

    tokens: Integers
    logs: np.ndarray


def _likeliest(logits: np.ndarray, count: int, vocabulary: Integers | None) -> _Level:
    """Of one row [D]; equal ones by id."""
    x = logits.astype(np.float64)
    top = x.max()
    x -= top + math.log(float(np.exp(x - top).sum()))
    kept = np.flatnonzero(x >= np.partition(x, -min(count, len(x)))[-min(count, len(x))])
    order = kept[np.argsort(-x[kept], kind="stable")][:count]
    return _Level(order if vocabulary is None else vocabulary[order], x[order])
