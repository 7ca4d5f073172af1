"""Texts with and without a draft: greedy, coupled, with processors, and the cache that they leave behind."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.measure.certificate import Check
from selfspec.measure.nearties import LARGEST_NOISE, NearTies, difference, logits_of, raw
from selfspec.processors import process
from selfspec.sampling import Chance, distribution, gumbel
from selfspec.types import OneHot, Prefix, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from selfspec.drafters.base import Drafter
    from selfspec.measure.nearties import Score
    from selfspec.runtime.base import Cache, Runtime
    from selfspec.types import Array

TEMPERATURE = 0.8
EPSILON = {"float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}  # float32 elsewhere
SLACK = 4  # a cache may differ from a fresh prefill by this much more than plain decoding's does
PLAIN = "plain"


@dataclass(frozen=True)
class Candidate:
    """A drafter by name, and its options."""

    name: str
    options: Mapping[str, Any]

    def make(self, runtime: Runtime) -> Drafter:
        """A new one."""
        return drafters.create(self.name, runtime.config, dict(self.options))

    def described(self, runtime: Runtime) -> dict[str, Any]:
        """What the certificate says of it."""
        made = self.make(runtime)
        plan = None if made.plan is None else str(made.plan)
        return {"name": self.label(runtime), "drafter": self.name, "plan": plan, "options": asdict(made.options)}

    def label(self, runtime: Runtime) -> str:
        """Its name, plan and what else is special, on one line."""
        made = self.make(runtime)
        plan = "" if made.plan is None else f" {made.plan}"
        siblings = getattr(made.options, "siblings", 0)
        return f"{self.name}{plan} γ {made.options.gamma}" + (f" siblings {siblings}" if siblings else "")


@dataclass(frozen=True)
class Trial:
    """What the checks share: a model, prompts as token ids, the drafters, and how much to write."""

    runtime: Runtime
    prompts: Sequence[Sequence[int]]
    candidates: Sequence[Candidate]
    new_tokens: int
    notify: Callable[[str], None]

    def write(
        self, prompt: Sequence[int], drafter: Drafter, sampling: Sampling, chance: Chance
    ) -> tuple[Text, Cache]:
        """One text through the real loop, and the cache that it leaves."""
        limit = min(len(prompt) + self.new_tokens, self.runtime.config.context_length)
        text = Text(0, 0, list(prompt), limit, sampling, chance, self.runtime.config.eos_token_ids.__contains__)
        context = Context(self.runtime, self.runtime.new_cache(1, limit))
        for _ in decode(context, [text], drafter):
            pass
        return text, context.cache

    def plain(self, prompt: Sequence[int], sampling: Sampling, chance: Chance) -> tuple[Text, Cache]:
        """The same without a draft."""
        return self.write(prompt, drafters.create(PLAIN, self.runtime.config, {}), sampling, chance)


def new_tokens(text: Text) -> tuple[int, ...]:
    """What was written."""
    return tuple(text.tokens[text.prompt_length :])


# -- greedy, and the cache --------------------------------------------------------------------------------


def greedy_checks(trial: Trial, noise: float) -> list[Check]:
    """Every drafter writes what plain decoding writes, and leaves the cache that a fresh prefill would.

    ``noise`` is what row counts change in the logits of this runtime.
    """
    ties, fresh = NearTies(trial.runtime), _Fresh(trial.runtime)
    plain = [trial.plain(prompt, Sampling(), Chance(0)) for prompt in trial.prompts]
    trial.notify(f"greedy: {len(plain)} texts without a draft")
    own = max(fresh.difference(*pair) for pair in plain)
    limit = fresh.limit(max(own, noise))
    worst, wrong, count = 0.0, [], 0
    for candidate in trial.candidates:
        name = candidate.label(trial.runtime)
        for number, (prompt, (expected, _)) in enumerate(zip(trial.prompts, plain, strict=True), 1):
            drafter = candidate.make(trial.runtime)
            text, cache = trial.write(prompt, drafter, Sampling(), Chance(0))
            rows = drafter.options.most_tokens + 1
            ties.compare(prompt, new_tokens(text), new_tokens(expected), (number, name), rows)
            off, count = fresh.difference(text, cache), count + 1
            worst = max(worst, off)
            if off > limit:
                wrong.append({"prompt": number, "drafter": name, "difference": off})
        trial.notify(f"greedy: {len(plain)} texts with {name}")
    details = {
        "texts": count,
        "wrong": wrong,
        "largest_difference": worst,
        "limit": limit,
        "plain_difference": own,
    }
    said = f"{count} caches, logits at most {worst:.1e} from those of a fresh prefill; limit {limit:.1e}"
    return [_texts_check("greedy", ties), Check("cache", not wrong, said, details)]


class _Fresh:
    """Compares what a cache says of the next token with what a fresh prefill says."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[tuple[int, ...], np.ndarray[Any, Any]] = {}
        self._largest = 0.0

    def difference(self, text: Text, cache: Cache) -> float:
        """The largest difference between the logits [V] of the pending token: all cells that it sees count."""
        tokens = tuple(text.tokens)
        if tokens not in self._known:
            self._known[tokens] = self._after_prefill(tokens)
            self._largest = max(self._largest, float(np.abs(self._known[tokens]).max()))
        ours = logits_of(self._runtime, tokens, (len(tokens) - 1, len(tokens)), cache)[0]
        return difference(self._known[tokens], ours)

    def limit(self, noise: float) -> float:
        """What may be: nothing where the runtime is row-invariant."""
        if self._runtime.is_row_invariant:
            return 0.0
        rounding = EPSILON.get(self._runtime.precision, 2.0**-23) * self._largest
        return SLACK * max(min(noise, LARGEST_NOISE.get(self._runtime.precision, noise)), rounding)

    def _after_prefill(self, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
        last = len(tokens) - 1
        cache = self._runtime.new_cache(1, len(tokens))
        logits_of(self._runtime, tokens, (0, last), cache)
        return logits_of(self._runtime, tokens, (last, len(tokens)), cache)[0]


def _texts_check(name: str, ties: NearTies, **details: Any) -> Check:
    """What the comparisons of ``ties`` say."""
    equal = ties.texts - len(ties.divergences)
    said = f"{equal} of {ties.texts} texts equal plain decoding's"
    if ties.near_ties:
        said += f"; {ties.near_ties} part at near-ties (allowed: {ties.allowed})"
    if ties.bugs:
        first = next(found for found in ties.divergences if found.kind == "bug")
        said += f"; {ties.bugs} part elsewhere, first prompt {first.prompt}, new token {first.index + 1}"
        said += f", {first.drafter}"
    found: dict[str, Any] = {
        "texts": ties.texts,
        "equal": equal,
        "near_ties": ties.near_ties,
        "near_ties_allowed": ties.allowed,
        "bugs": ties.bugs,
        "divergences": [asdict(divergence) for divergence in ties.divergences],
    }
    return Check(name, ties.passed, said, found | details)


# -- coupled sampling -------------------------------------------------------------------------------------


def coupled_check(trial: Trial, seed: int) -> Check:
    """Coupled sampling writes the same text with and without a draft, token for token."""
    sampling = Sampling(TEMPERATURE, coupled=True)
    scores, ties = None, None
    del scores, ties
    raise NotImplementedError
