"""What the checks on a model share: prompts, drafters, and texts through the real loop."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.measure.nearties import Place
from selfspec.rounds import Stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from selfspec.drafters.base import Drafter, Host
    from selfspec.runtime.base import Cache, Runtime
    from selfspec.sampling import Chance
    from selfspec.types import Sampling


@dataclass(frozen=True)
class Candidate:
    """A drafter by name, and its options."""

    name: str
    options: Mapping[str, Any]

    def make(self, host: Host) -> Drafter:
        """A new one."""
        kind, within = self._kind
        options = drafters.over(self.name, within, dict(self.options))
        return drafters.create(kind, host.runtime.config, options, host)

    @cached_property
    def _kind(self) -> tuple[type[Drafter], dict[str, Any]]:
        return drafters.resolve(self.name)

    def label(self, host: Host) -> str:
        """Its name, what it runs, γ and siblings, on one line."""
        made = self.make(host)
        plan = "" if made.runs == "none" else f" {made.runs}"
        siblings = getattr(made.options, "siblings", 0)
        return f"{self.name}{plan} γ {made.options.gamma}" + (f" siblings {siblings}" if siblings else "")

    def to_dict(self, host: Host) -> dict[str, Any]:
        """What the certificate says of it."""
        made = self.make(host)
        plan = None if made.runs == "none" else made.runs
        options = {f.name: getattr(made.options, f.name) for f in fields(made.options) if "help" in f.metadata}
        return {"label": self.label(host), "name": self.name, "plan": plan, "options": options}


PLAIN = Candidate("plain", {})


class Prompt(NamedTuple):
    """Its number, from 1, and its token ids."""

    number: int
    tokens: Sequence[int]


class Written(NamedTuple):
    """A finished text, the cache that it left, its rounds, and the most rows that a pass of its drafter has."""

    text: Text
    cache: Cache
    stats: Stats
    rows: int

    @property
    def new(self) -> tuple[int, ...]:
        """The new tokens."""
        return tuple(self.text.tokens[self.text.prompt_length :])


@dataclass(frozen=True)
class Trial:
    """An engine, the prompts, the drafters, and how many tokens to write at most."""

    host: Host
    prompts: Sequence[Prompt]
    candidates: Sequence[Candidate]
    new_tokens: int
    notify: Callable[[str], None]

    @property
    def runtime(self) -> Runtime:
        """The model's."""
        return self.host.runtime

    def fewer(self, count: int) -> Trial:
        """The same with ``count`` of the prompts, spread over all of them."""
        step = max(1, len(self.prompts) // count)
        return replace(self, prompts=self.prompts[::step][:count])

    def write(self, prompt: Prompt, candidate: Candidate, sampling: Sampling, chance: Chance) -> Written:
        """One text through the real loop, with a cache of its own."""
        config = self.runtime.config
        limit = min(len(prompt.tokens) + self.new_tokens, config.context_length)
        text = Text(0, 0, list(prompt.tokens), limit, sampling, chance, config.eos_token_ids.__contains__)
        context, drafter = Context(self.runtime, self.runtime.new_cache(1, limit)), candidate.make(self.host)
        stats = Stats()
        for round_ in decode(context, [text], drafter):
            stats.add(round_)
        return Written(text, context.cache, stats, drafter.most_tokens + 1)

    def drafted(self, name: str) -> Iterator[tuple[Candidate, str, Prompt]]:
        """Every drafter on every prompt, and the drafter's label; says so after each drafter."""
        for candidate in self.candidates:
            label = candidate.label(self.host)
            for prompt in self.prompts:
                yield candidate, label, prompt
            self.notify(f"{name}: {len(self.prompts)} texts with {label}")


def place(prompt: Prompt, label: str, written: Written) -> Place:
    """Where a comparison stands."""
    return Place(prompt.number, label, written.rows)
