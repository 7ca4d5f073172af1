"""What drafters with a trained head share: finding it, whether it belongs to this model, and passes over it.

A draft cannot change what is written, so a head may say anything: it is checked for its sizes, and for whom it was
trained, because a head for another checkpoint is only slow.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.drafters.base import Extra, option
from selfspec.drafters.caches import OwnCaches
from selfspec.drafters.comb import CombOptions
from selfspec.errors import CorruptModelError, OptionError, RuntimeMissingError
from selfspec.feeds import MOST_PENDING
from selfspec.joining import concatenate
from selfspec.model.head_file import HeadFile, read_facts
from selfspec.model.head_weights import Passing
from selfspec.model.published_heads import read_any
from selfspec.model.reading import expanded, quoted
from selfspec.processors import active
from selfspec.runtime.attached import identity_of, parameters
from selfspec.types import Rows

if TYPE_CHECKING:
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
        "File of a trained head (`selfspec train`), or a folder with a published one (EAGLE-3, Medusa); eagle: "
        "default the one that comes with this model.",
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


def opened(path: str | os.PathLike[str], kind: str, config: ModelConfig) -> HeadFile:
    """The head in a file, or in a folder of a published one, for a model; read once.

    Its weights are read again for who wants them after `let_go`.

    Raises OptionError for one of another kind, and as `read_any`.
    """
    file = expanded(path)
    head = _read(file, _status(file), config.num_layers)
    if head.facts.kind != kind:
        raise OptionError(
            f"{quoted(file)} is of the kind {head.facts.kind}: use it with --draft {DRAFTERS[head.facts.kind]}"
        )
    return head


DRAFTERS = {"exit_head": "early_exit", "eagle": "eagle", "medusa": "medusa"}
"""Who drafts with a head of each kind."""
parts_of = lru_cache(maxsize=8)(HeadFile.parts)
"""`HeadFile.parts`, made once."""


@lru_cache(maxsize=8)
def _read(file: Path, status: object, num_layers: int) -> HeadFile:
    head = read_any(file, num_layers, _of_torch)

    def again() -> Mapping[str, Any]:
        found = read_any(file, num_layers, _of_torch)
        if _status(file) != status:
            raise CorruptModelError(f"{quoted(file)} changed while it was in use; start again")
        return found.weights

    return replace(head, weights=Passing(head.weights, again))


def let_go(head: HeadFile) -> None:
    """Hold the weights of an `opened` head no longer: what is attached has its own."""
    if isinstance(head.weights, Passing):
        head.weights.let_go()


def _of_torch(file: Path) -> dict[str, Any]:
    try:
        from selfspec.runtime.torch_files import read_tensors
    except ImportError as error:
        raise RuntimeMissingError(
            f"{quoted(file)} is in torch's format: pip install 'selfspec[torch]', or give a .safetensors"
        ) from error
    return read_tensors(file)


def _status(file: Path) -> object:
    """What changes with a file, or with one of a folder."""
    files = sorted(file.iterdir()) if file.is_dir() else [file] if file.is_file() else []
    return tuple((one.name, (status := one.stat()).st_mtime_ns, status.st_size) for one in files)


def shipped(host: Host, kind: str) -> Path | None:
    """The head of a kind that comes with the package for this checkpoint, if there is one."""
    for path, facts in _all_shipped(SHIPPED):
        if facts.kind == kind and facts.target and facts.target in names_of(host):
            return path
    return None


def shipped_for(name: str, kind: str) -> Path | None:
    """The same for a checkpoint of which no more than a name is known."""
    found = (path for path, facts in _all_shipped(SHIPPED) if (facts.kind, facts.target_name) == (kind, name))
    return next(found, None)


@lru_cache(maxsize=4)
def _all_shipped(folder: Path) -> tuple[tuple[Path, HeadFacts], ...]:
    return tuple((path, read_facts(path)) for path in sorted(folder.glob("*.safetensors")))


def names_of(host: Host) -> tuple[str, str]:
    """What a checkpoint is called in the facts of heads."""
    return host.kept(("identity",), lambda: (identity_of(host.runtime), host.fingerprint))


def _is_share(value: object) -> bool:
    return isinstance(value, float | int) and 0.0 <= value <= 1.0


def _drafts_likeliest(text: Text) -> bool:
    """Whether `Text.draft_law` is the token with the largest logit, whatever the prefix."""
    sampling = text.sampling.for_drafts
    sampling = sampling if text.samples_drafts else sampling.likeliest
    return sampling.is_greedy and not active(sampling)


class Beside(ABC):
    """What runs beside the target of an engine, with a cache for each context if it ``attends``.

    ``taps`` are the layers that it reads. ``row_layers`` is what a row costs, in row-layers of the target;
    ``share`` its weights and those of its LM head, of those of a pass.
    """

    row_layers = 0.0
    share = 0.0

    def __init__(self, taps: tuple[int, ...], attends: bool) -> None:
        self.taps, self.attends = taps, attends
        self._attached: Attached | None = None
        self._caches = OwnCaches()
        self._waiting = 0  # bytes of states that waited of one text, at most

    @abstractmethod
    def bind(self, host: Host) -> None:
        """Attach it; raises OptionError where it does not belong to this model."""

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
        cache = self._cache(context) if self.attends else None
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


class Attachment(Beside):
    """A trained head."""

    def __init__(
        self, config: ModelConfig, options: HeadOptions, head: HeadFile, attached: Attached | None = None
    ) -> None:
        super().__init__(head.facts.taps, head.facts.attends)
        self.head, self._options, self._attached = head, options, attached
        own, last = parameters(head, config)
        self.row_layers = own / config.active_layer_parameters
        self.share = (own + last) / config.pass_parameters

    @property
    def stated_alphas(self) -> tuple[float, ...]:
        """See `Drafter.stated_alphas`: what its card says of other prompts, else of those held out in training."""
        said = self.head.facts.card
        for path in (("acceptance", "tasks", "all"), ("held_out", "greedy")):
            found: Any = said
            for name in path:
                found = found.get(name) if isinstance(found, Mapping) else None
            alphas = found.get("alphas") if isinstance(found, Mapping) else None
            if isinstance(alphas, Sequence) and all(_is_share(alpha) for alpha in alphas):
                return tuple(alphas)
        return ()

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
