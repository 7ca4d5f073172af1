"""What drafters with a trained head share: finding it, whether it belongs to this model, and passes over it.

A draft cannot change what is written, so a head may say anything: it is checked for its sizes, and for whom it was
trained, because a head for another checkpoint is only slow.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.drafters.base import Extra, option
from selfspec.drafters.caches import OwnCaches
from selfspec.drafters.comb import CombOptions
from selfspec.errors import OptionError
from selfspec.feeds import MOST_PENDING
from selfspec.joining import concatenate
from selfspec.model.head_file import HeadFile, read_facts, read_head
from selfspec.model.reading import expanded, quoted
from selfspec.processors import active
from selfspec.runtime.attached import identity_of, parameters
from selfspec.types import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Host
    from selfspec.drafters.steps import Growing
    from selfspec.feeds import Feed
    from selfspec.model.config import ModelConfig
    from selfspec.model.head_file import HeadFacts
    from selfspec.runtime.attached import Attached, Likeliest
    from selfspec.runtime.base import Cache
    from selfspec.types import Array

BITS = (4, 8, 16, 32)
SHIPPED = Path(__file__).parents[1] / "heads"
"""Heads that come with the package."""


@dataclass(frozen=True)
class HeadOptions(CombOptions):
    """Options of drafters that a trained head drafts for."""

    head: str | None = option(
        None,
        "File of a trained head (`selfspec train`); eagle: default the one that comes with this model.",
        opens=True,
    )
    head_bits: int | None = option(
        None, "cpu: bits a weight of the head: 4, 8, 16 or 32. Default: 8, whatever the model has.", opens=True
    )
    any_target: bool = option(
        False, "Take a head that was trained for another checkpoint of the same sizes; it may never be right."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.head
        if isinstance(given, os.PathLike):
            object.__setattr__(self, "head", os.fspath(given))
        elif given is not None and (not isinstance(given, str) or not given):
            raise OptionError(f"head is {given!r}; it must name the file of a trained head")
        if self.head_bits not in (None, *BITS):
            raise OptionError(f"head_bits is {self.head_bits}; it must be one of {', '.join(map(str, BITS))}")


def opened(path: str | os.PathLike[str], kind: str) -> HeadFile:
    """The head in a file, read once; raises OptionError for one of another kind, and as `read_head`."""
    file = expanded(path)
    status = file.stat() if file.is_file() else None
    head = _read(file, None if status is None else (status.st_mtime_ns, status.st_size))
    if head.facts.kind != kind:
        drafts = "eagle" if head.facts.kind == "eagle" else "early_exit"
        raise OptionError(f"{quoted(file)} is of the kind {head.facts.kind}: use it with --draft {drafts}")
    return head


@lru_cache(maxsize=8)
def _read(file: Path, _status: tuple[int, int] | None) -> HeadFile:
    return read_head(file)


def shipped(host: Host, kind: str) -> Path | None:
    """The head of a kind that comes with the package for this checkpoint, if there is one."""
    for path, facts in _all_shipped(SHIPPED):
        if facts.kind == kind and facts.target and facts.target in names_of(host):
            return path
    return None


@lru_cache(maxsize=4)
def _all_shipped(folder: Path) -> tuple[tuple[Path, HeadFacts], ...]:
    return tuple((path, read_facts(path)) for path in sorted(folder.glob("*.safetensors")))


def names_of(host: Host) -> tuple[str, str]:
    """What a checkpoint is called in the facts of heads."""
    return host.kept(("identity",), lambda: (identity_of(host.runtime), host.fingerprint))


def _drafts_likeliest(text: Text) -> bool:
    """Whether `Text.draft_law` is the token with the largest logit, whatever the prefix."""
    sampling = text.sampling.for_drafts
    sampling = sampling if text.samples_drafts else sampling.likeliest
    return sampling.is_greedy and not active(sampling)


class Attachment:
    """A head beside the target of an engine, with a cache for each context."""

    def __init__(
        self, config: ModelConfig, options: HeadOptions, head: HeadFile, attached: Attached | None = None
    ) -> None:
        self.head = head
        self._config, self._options = config, options
        own, last = parameters(head, config)
        self.row_layers = own / config.active_layer_parameters  # of a row, in row-layers of the target
        self.share = (own + last) / config.pass_parameters  # of the weights of a pass
        self._attached = attached
        self._caches = OwnCaches()
        self._waiting = 0  # bytes of states that waited of one text, at most

    def check(self, host: Host) -> None:
        """Raise OptionError where the head does not belong to this model."""
        facts, options = self.head.facts, self._options
        names = names_of(host)
        if facts.target and any(names) and facts.target not in names and not options.any_target:
            name = facts.target_name or facts.target[:12]
            raise OptionError(
                f"the head was trained for another checkpoint, {name}: give one for this model, or any_target "
                "(--any-target) to try it in spite of that"
            )

    def bind(self, host: Host) -> None:
        """Attach the head; raises as `check`."""
        self.check(host)
        options = self._options
        key = ("head", id(self.head), options.head_bits)
        _, self._attached = host.kept(
            key, lambda: (self.head, host.runtime.attach(self.head, options.head_bits))
        )  # with the head itself, so that its id stays its own

    @property
    def attached(self) -> Attached:
        """What runs it."""
        assert self._attached is not None, "no engine has bound this drafter"
        return self._attached

    @property
    def extra_bytes(self) -> Extra:
        """Its weights; its keys and values of one text, and the states that waited for it."""
        return (
            Extra()
            if self._attached is None
            else Extra(self._attached.weight_bytes, self._caches.bytes_per_text + self._waiting)
        )

    def taken(self, feed: Feed, rows: int) -> tuple[int, list[int], Array]:
        """The first ``rows`` that wait: as `Feed.take`, but the cell of the first in this head's cache."""
        first, tokens, states = feed.take(rows)
        self._waiting = max(self._waiting, states.nbytes)
        return first - feed.origin, tokens, states

    def run(self, context: Context, entering: Array, tokens: Sequence[int], rows: Rows) -> Array:
        """Its states [R, d]; in passes of at most `MOST_PENDING` rows, which are counted."""
        context.count(rows.slots.tolist(), self.row_layers)
        cache = self._cache(context) if self.head.facts.attends else None
        if len(rows) <= MOST_PENDING:
            return self.attached.run(entering, tokens, rows, cache)
        made = []
        for start in range(0, len(rows), MOST_PENDING):
            part = range(start, min(start + MOST_PENDING, len(rows)))
            made.append(
                self.attached.run(entering[start : part.stop], tokens[start : part.stop], rows.take(part), cache)
            )
        return concatenate(made)

    def said(self, growing: Sequence[Growing], states: Array) -> Sequence[Array | Likeliest]:
        """What follows rows: logits [V] each, or the likeliest token where no text asks for more."""
        if all(_drafts_likeliest(chain.text) and not chain.comb.width for chain in growing):
            return self.attached.best(states)
        rows: Sequence[Array] = self.attached.wide(self.attached.logits(states))
        return rows

    def _cache(self, context: Context) -> Cache:
        """With as many cells as the target's."""
        return self._caches.of(context, context.cache.length, self.attached.new_cache)
