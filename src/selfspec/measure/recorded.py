"""The real loop and the real drafters over recorded answers, on a clock of measured costs: no model is run.

A runtime that knows what the target said, and where drafts by certain layers would have said the same, gives every
drafter what it would have seen along these answers: how many rounds it takes, what it drafts, what is accepted.
For greedy decoding and drafts of early exits or of a look-up these counts are exact. Skip sets are taken to be
right at every depth of a draft where they are at its first token. At a temperature a draft token holds with the
probability of being accepted at its place, drawn once (`selfspec.measure.replay` has the exact sum for exits).

Passes take what was measured: layers and head of one row, and v(T). The loop's clock is that sum; no other is read.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from selfspec.context import Context, Text
from selfspec.decode import Loop
from selfspec.errors import OptionError
from selfspec.measure.contenders import made, resolved
from selfspec.measure.toy import MarkovCache
from selfspec.rounds import Stats
from selfspec.runtime.base import Runtime
from selfspec.runtime.costs import PassCosts
from selfspec.sampling import Chance
from selfspec.types import MAX_GAMMA, LayerPlan, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from selfspec.drafters.base import Drafter
    from selfspec.model.config import ModelConfig
    from selfspec.runtime.base import Cache
    from selfspec.types import Array, Integers, Rows, SubLayer

T = TypeVar("T")
_SURE = 0.999  # the target's confidence, and the largest of a draft
_PLACES = 10**6  # cells of a cache that holds nothing
_PRIMED = 3  # how often each pass was seen before the first answer
_FULL, _UNKNOWN = 0, -1
_GAP = -1


@dataclass(frozen=True, eq=False)
class Voice:
    """What a draft by some layers says along an answer of n tokens: whether it is right [n], how sure it is [n]."""

    held: Sequence[bool]
    confidences: Sequence[float]


@dataclass(frozen=True, eq=False)
class Tape:
    """A prompt, the target's answer, whether an end-of-text token ended it, and the voices by their plans."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    has_ended: bool
    voices: Mapping[LayerPlan, Voice]


@dataclass(frozen=True)
class Prices:
    """Seconds of a round without a draft, and as shares of it one of L layers and all the rest; v(1), v(2), ...

    ``look_up`` and ``decision`` are seconds that a look-up and the controller take per text and round.
    """

    plain: float
    layer: float
    rest: float
    v: tuple[float, ...]
    look_up: float = 0.0
    decision: float = 0.0

    def rows(self, count: int) -> float:
        """v(count); beyond what was measured every row costs what the last one did."""
        known = self.v
        if count <= len(known):
            return known[count - 1]
        last = max(known[-1] - known[-2], 0.0) if len(known) > 1 else 0.0
        return known[-1] + last * (count - len(known))


@dataclass(frozen=True)
class Replayed:
    """What became of all answers: seconds of the modelled clock after the first token of each group, and counts."""

    seconds: tuple[float, ...]
    stats: Stats

    @property
    def row_layers_per_token(self) -> float:
        """Layers times rows that draft and verification ran, per token after the first ones."""
        done = self.stats
        return (done.draft_row_layers + done.verify_row_layers) / max(done.tokens - done.texts, 1)


class Recording(Runtime):
    """Says what was recorded; as a host it keeps what drafters learn.

    A hidden state is (place, number of the plan that ran, slot, how many of the first layers ran without a gap).
    """

    name, precision, value_bytes = "recording", "float64", 8
    tokenizer, fingerprint = None, ""

    def __init__(self, config: ModelConfig, tapes: Sequence[Tape], prices: Prices) -> None:
        self._eos = sorted(config.eos_token_ids)
        known = [{*self._eos, *tape.prompt, *tape.answer} for tape in tapes]
        self._size = max(map(len, known)) + 1
        self._layers = config.num_layers
        self.config = replace(
            config, vocab_size=self._size, context_length=_PLACES, eos_token_ids=tuple(range(len(self._eos)))
        )
        self._prices, self.now = prices, 0.0
        self._kept: dict[Hashable, Any] = {}
        self._tapes: Sequence[Tape] = ()
        self._tokens: list[list[int]] = []
        self._full = LayerPlan.full(self._layers)
        self._plans = list(dict.fromkeys(plan for tape in tapes for plan in tape.voices))
        self._numbers: dict[tuple[int, LayerPlan], int] = {}  # of plans, by how deep their rows were before
        for number, plan in enumerate(self._plans, start=1):
            # it may run from its first layer, or go on from a shallower draft
            shared = plan.shared_prefix
            self._numbers |= {(0, plan): number, (shared, plan.span(shared, self._layers)): number}
        exits = [(stop, LayerPlan.exit_at(self._layers, stop)) for stop in range(1, self._layers)]
        self._exits = {stop: self._numbers.get((0, plan), _UNKNOWN) for stop, plan in exits}
        self._exits[self._layers] = _FULL

    # -- a host of drafters ---------------------------------------------------------------------------------

    @property
    def runtime(self) -> Recording:
        """Itself."""
        return self

    def notify(self, line: str) -> None:
        """Nobody listens."""

    def open_model(self, model: Any = None, **placement: Any) -> Any:  # noqa: ARG002
        """Raise OptionError: there is none."""
        raise OptionError("a recording opens no models")

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """As an engine."""
        if key not in self._kept:
            self._kept[key] = make()
        found: T = self._kept[key]
        return found

    @cached_property
    def costs(self) -> PassCosts:
        """Those of an engine that has run for a while."""
        costs = PassCosts()
        for _ in range(_PRIMED):
            for rows, cost in enumerate(self._prices.v, start=1):
                costs.observe(rows, self._prices.plain * cost)
        return costs

    def clock(self) -> float:
        """Seconds of all that was run."""
        return self.now

    # -- what is played -------------------------------------------------------------------------------------

    def play(self, tapes: Sequence[Tape]) -> list[Text]:
        """The texts of some answers, one in each slot, at their prompts; tokens have numbers of their own."""
        self._tapes = tapes
        numbers = [
            {token: i for i, token in enumerate(dict.fromkeys([*self._eos, *tape.prompt, *tape.answer]))}
            for tape in tapes
        ]
        self._tokens = [
            [own[token] for token in (*tape.prompt, *tape.answer)] for own, tape in zip(numbers, tapes, strict=True)
        ]
        return [self._text(slot, tape) for slot, tape in enumerate(tapes)]

    def _text(self, slot: int, tape: Tape) -> Text:
        tokens, eos = self._tokens[slot], self.config.eos_token_ids
        limit = len(tokens) + (MAX_GAMMA + 1 if tape.has_ended else 0)
        ends = eos.__contains__ if tape.has_ended else lambda _: False
        return Text(slot, slot, tokens[: len(tape.prompt)], limit, Sampling(), Chance(0), ends)

    def is_played(self, text: Text) -> bool:
        """Whether a text has become the recorded one."""
        return text.tokens == self._tokens[text.slot]

    # -- the runtime ----------------------------------------------------------------------------------------

    def embed(self, tokens: Sequence[int], positions: Integers | None = None) -> Array:
        """States [R, 4] before layer 0."""
        assert positions is not None
        hidden = np.zeros((len(tokens), 4))
        hidden[:, 0] = positions
        return hidden

    def run(
        self,
        hidden: Array,
        plan: LayerPlan,
        rows: Rows,
        cache: Cache,  # noqa: ARG002
        taps: Sequence[SubLayer] = (),
    ) -> tuple[Array, dict[SubLayer, Array]]:
        """The states of who ran these layers; after a tap those of the exit there."""
        self._takes(self._prices.layer * plan.row_layers, len(hidden))
        out = hidden.copy()
        out[:, 2] = rows.slots
        tapped = {}
        for tap in taps:
            tapped[tap] = out.copy()
            tapped[tap][:, 1], tapped[tap][:, 3] = self._exits[tap.layer + 1], tap.layer + 1
        depth = int(hidden[0, 3])
        stop = plan.steps[-1].layer + 1
        if plan == self._full.span(depth, stop):
            out[:, 1], out[:, 3] = self._exits[stop], stop
        else:  # with a gap: a plan that was listened to, or nobody knows what it says
            out[:, 1], out[:, 3] = self._numbers.get((depth, plan), _UNKNOWN), _GAP
        return out, tapped

    def logits(self, hidden: Array) -> Array:
        """Logits [R, V] in which what was said has the recorded confidence."""
        self._takes(self._prices.rest, len(hidden))
        logits = np.zeros((len(hidden), self._size))
        for row, (place, plan, slot, _) in enumerate(hidden.astype(int).tolist()):
            token, confidence = self._said(place + 1, plan, slot)
            share = min(max(confidence, 1.5 / self._size), _SURE)
            logits[row, token] = math.log(share / (1.0 - share) * (self._size - 1))
        return logits

    def _said(self, place: int, plan: int, slot: int) -> tuple[int, float]:
        tape, tokens, wrong = self._tapes[slot], self._tokens[slot], self._size - 1
        if plan == _UNKNOWN:
            raise LookupError("these layers were not listened to")
        at = place - len(tape.prompt)
        if not 0 <= at < len(tape.answer):
            return wrong, 1.0 / self._size  # beyond the answer nothing is known
        if plan == _FULL:
            return tokens[place], _SURE
        voice = tape.voices[self._plans[plan - 1]]
        return tokens[place] if voice.held[at] else wrong, voice.confidences[at]

    def _takes(self, share: float, rows: int) -> None:
        self.now += self._prices.plain * share * self._prices.rows(rows)

    def new_cache(self, slots: int, length: int) -> MarkovCache:
        """One that holds nothing."""
        return MarkovCache(slots, length)

    def keep(self, cache: Cache, rows: Rows) -> None:
        """Nothing is kept."""


def replayed(
    draft: str, config: ModelConfig, tapes: Sequence[Tape], prices: Prices, texts: int = 1
) -> Replayed | None:
    """Answer all ``tapes`` with a drafter, ``texts`` at once; None for one that runs what was not recorded.

    None, too, where this model cannot have it. ``draft`` is spelled as for --draft. Each group of texts has a
    drafter of its own, as requests of an engine have; what an engine keeps is kept. Raises OptionError for a
    drafter or options that there are not.
    """
    resolved(draft)  # raises what is wrong with the name, whatever it would need
    recording = Recording(config, tapes, prices)
    stats, seconds = Stats(), []
    for group in _groups(tapes, texts):
        try:
            drafter = made(draft, recording)
        except OptionError:  # of this model, or it needs more than a recording
            return None
        playing = recording.play(group)
        loop = Loop(Context(recording, recording.new_cache(len(group), _PLACES)), recording.clock)
        stats.add(loop.add(playing, drafter))
        began = recording.now
        while loop.texts:
            round_ = loop.turn()
            stats.add(round_)
            recording.now += _overhead(drafter, prices) * len(round_.commits)
        if any(isinstance(text.error, LookupError) for text in playing):
            return None
        for text in playing:
            if text.error is not None:
                raise text.error
            assert recording.is_played(text), f"{draft} changed a recorded answer"
        seconds.append(recording.now - began)
    return Replayed(tuple(seconds), stats)


def _groups(tapes: Sequence[Tape], texts: int) -> Iterator[Sequence[Tape]]:
    for start in range(0, len(tapes), texts):
        yield tapes[start : start + texts]


def _overhead(drafter: Drafter, prices: Prices) -> float:
    """Seconds of Python per text and round, passes aside."""
    own = prices.decision if drafter.name == "auto" else 0.0
    return own + prices.look_up * sum(part.is_free for part in drafter.parts)
