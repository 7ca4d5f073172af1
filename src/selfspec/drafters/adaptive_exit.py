"""Early exit whose layer and length follow the text: `early_exit` with ``exit_layer`` adaptive. See `shadow`.

Rows of one draft may leave at different layers. One that goes deeper needs the keys and values of those before it,
so these catch up with it in the same pass; each row keeps what left its last layer, and verification resumes there.
No row runs a layer twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from selfspec.drafters.shadow import Choice, ExitControl, ExitCosts, Ladder, Shadow
from selfspec.drafters.steps import Growing, StepDrafter
from selfspec.errors import SelfspecError
from selfspec.joining import concatenate
from selfspec.prefixes import shared_length
from selfspec.sampling import top_probability
from selfspec.types import Array, Draft, LayerPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from selfspec.context import Context, Text
    from selfspec.drafters.early_exit import EarlyExitOptions
    from selfspec.model.config import ModelConfig
    from selfspec.types import Distribution
    from selfspec.watch import Watched

WARM_UP = 4
"""Rounds of a text whose shadow tokens are all looked at."""
SELDOM = 8
"""How many times the usual rounds pass between two looks, at most, while nothing is drafted."""


class _Climb(Growing):
    """The draft of one text while it grows: for each row the layer it reached, and what was seen on the way.

    ``kept`` holds the rows' last states; ``said`` logits [V] and ``passed`` states [1, d], by (row, layer). The
    exits in ``watch`` are all looked at later. ``length`` is that of the text when the draft began.
    """

    def __init__(self, options: EarlyExitOptions, text: Text, choice: Choice, watch: tuple[int, ...]) -> None:
        super().__init__(options, text, choice.gamma, Draft())
        self.ladder, self.watch = choice.ladder, watch
        self.length = len(text.tokens)
        self.layers: list[int] = []
        self.said: dict[tuple[int, int], Array] = {}
        self.confidences: dict[tuple[int, int], float] = {}
        self.passed: dict[tuple[int, int], Array] = {}
        self.cleared = True

    def behind(self, layer: int) -> list[int]:
        """Rows that have not reached ``layer``; they are the last ones, and all at one layer."""
        return [row for row, reached in enumerate(self.layers) if reached < layer]


@dataclass
class _State:
    """What is kept for a text: what is known of its exits, and its last draft."""

    control: ExitControl
    wait: int
    rounds: int = 0
    next_look: int = 0
    choice: Choice | None = None
    last: _Climb | None = None


class AdaptiveExit(StepDrafter):
    """Chooses a ladder of exits and γ for every text and round; each token leaves at the first rung it clears."""

    name = "early_exit"
    summary = "the same model, leaving at the layer that pays"

    def __init__(self, options: EarlyExitOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._settings = options
        self.candidates = options.candidates(config.num_layers)
        self._costs = ExitCosts(
            config.num_layers, config.head_parameters / config.active_layer_parameters, options.row_price
        )
        self._states: dict[Text, _State] = {}
        self._latest: LayerPlan | None = None

    @property
    def plan(self) -> LayerPlan | None:
        """The deepest exit of the ladder chosen last, for whichever text."""
        return self._latest

    @property
    def exits(self) -> int:
        """The candidates: their shadow tokens are looked at when verification is over."""
        return len(self.candidates)

    @property
    def runs(self) -> str:
        """The candidates."""
        return f"exit {','.join(map(str, self.candidates))}/{self.config.num_layers}"

    def begin(self, text: Text) -> None:
        """Nothing is known of the exits."""
        super().begin(text)
        self._states[text] = _State(self.control(), self._settings.shadows)

    def control(self) -> ExitControl:
        """What decides for a new text."""
        return ExitControl(self.candidates, self._costs)

    def end(self, text: Text) -> None:
        """Drop what was learned."""
        super().end(text)
        del self._states[text]

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """Learn from the last verification, choose, and draft."""
        climbs = [self._begun(context, text, gamma) for text, gamma in zip(texts, gammas, strict=True)]
        for group in self.groups([climb for climb in climbs if climb.gamma > 0]):
            self._grow_all(context, group)
        return [self.finish(climb) for climb in climbs]

    def _begun(self, context: Context, text: Text, gamma: int) -> _Climb:
        state = self._states[text]
        if state.last is not None and text in context.watched:
            self._learn(context, state, context.watched[text])
        choice = state.choice
        if choice is None or choice.gamma > gamma:
            choice = state.control.choose(gamma)
        watch = self.candidates if self._looks(state, choice) else ()
        state.last = climb = _Climb(self._settings, text, choice, watch)
        if choice.gamma:
            self._latest = LayerPlan.exit_at(self.config.num_layers, choice.ladder.layers[-1])
        return climb

    def _looks(self, state: _State, choice: Choice) -> bool:
        """Whether all exits are looked at in this round: heads cost time, so ever more seldom while none pays."""
        now, usual = state.rounds, self._settings.shadows
        state.rounds += 1
        if now < WARM_UP:
            state.next_look = WARM_UP
            return True
        if now < state.next_look:
            return False
        state.wait = usual if choice.gamma else min(2 * state.wait, SELDOM * usual)
        state.next_look = now + state.wait
        return True

    # -- drafting ------------------------------------------------------------------------------------------

    def groups(self, chains: list[Growing]) -> Iterable[list[Growing]]:
        """Those of one ladder together, if the same layers are watched."""
        found: dict[tuple[Ladder, tuple[int, ...]], list[Growing]] = {}
        for chain in chains:
            assert isinstance(chain, _Climb)
            found.setdefault((chain.ladder, chain.watch), []).append(chain)
        return found.values()

    def step(self, context: Context, growing: Sequence[Growing]) -> Array:
        """Climb until a rung is cleared; logits of the rung where each left."""
        climbs = [climb for climb in growing if isinstance(climb, _Climb)]
        row, start, left = climbs[0].depth, 0, climbs
        for climb in climbs:
            climb.layers.append(0)
            climb.kept.append(climb.last)  # what enters layer 0 is a token
        ladder = climbs[0].ladder
        for stop in ladder.layers:
            if not left:
                break
            self._raise_to(context, left, (start, stop))
            logits = context.runtime.logits(concatenate([climb.kept[row] for climb in left]))
            if start:
                context.count([climb.text.slot for climb in left], self._costs.head)
            for climb, own in zip(left, logits, strict=True):
                climb.said[row, stop] = own
                climb.confidences[row, stop] = top_probability(own)
            start, left = stop, [climb for climb in left if not self._clears(climb, row, stop)]
        for climb in left if ladder.stops else ():
            climb.cleared = False
        return [climb.said[row, climb.layers[row]] for climb in climbs]

    def _clears(self, climb: _Climb, row: int, layer: int) -> bool:
        return climb.confidences[row, layer] >= self._states[climb.text].control.threshold(layer)

    def _raise_to(self, context: Context, climbs: Sequence[_Climb], layers: tuple[int, int]) -> None:
        """Run the rows that have not reached the stop of ``layers`` through them."""
        start, stop = layers
        rows = [(climb, row) for climb in climbs for row in climb.behind(stop)]
        entering = [climb.kept[row] for climb, row in rows]
        texts, depths = [climb.text for climb, _ in rows], [row for _, row in rows]
        taps = [layer for layer in climbs[0].watch if start < layer < stop]
        hidden, tapped = context.deepen(texts, depths, concatenate(entering) if start else entering, layers, taps)
        for i, (climb, row) in enumerate(rows):
            assert climb.layers[row] == start
            climb.kept[row], climb.layers[row] = hidden[i : i + 1], stop
            if climb.watch:
                climb.passed[row, stop] = climb.kept[row]
                climb.passed |= {(row, layer): states[i : i + 1] for layer, states in tapped.items()}

    def _grow(
        self, chain: Growing, logits: Array, guess: int | None = None, guessed_from: Distribution | None = None
    ) -> bool:
        """As every draft that grows, unless no rung was cleared."""
        assert isinstance(chain, _Climb)
        return chain.cleared and super()._grow(chain, logits, guess, guessed_from)

    def finish(self, chain: Growing) -> Draft:
        """The draft, each row with the state that it has, to be watched."""
        assert isinstance(chain, _Climb)
        if not chain.kept:
            return replace(chain.comb.draft(), watch=chain.watch)
        return replace(chain.comb.draft(concatenate(chain.kept), tuple(chain.layers)), watch=chain.watch)

    # -- learning ------------------------------------------------------------------------------------------

    def _learn(self, context: Context, state: _State, seen: Watched) -> None:
        """What exits said in the rows of the last draft whose prefix was committed, against the target."""
        climb = state.last
        assert climb is not None
        if not climb.watch and not climb.said:
            return
        came = climb.text.tokens[climb.length :]
        rows = 1 + shared_length(climb.comb.tokens, came[:-1])
        self._look(context, climb, seen, rows)
        for row in range(rows):
            shadows = self._shadows(climb, row, seen.logits[row])
            if shadows:
                state.control.learn(shadows, () if climb.watch else climb.ladder.layers)
        state.choice = state.control.choose(self._settings.gamma)

    def _look(self, context: Context, climb: _Climb, seen: Watched, rows: int) -> None:
        """Logits of watched exits at which the draft did not look: one pass of the head, which is counted."""
        states = seen.states | climb.passed
        missing = [(row, layer) for row in range(rows) for layer in climb.watch if (row, layer) not in climb.said]
        if missing:
            logits = context.runtime.logits(concatenate([states[at] for at in missing]))
            context.count([climb.text.slot] * len(missing), self._costs.head)
            climb.said |= zip(missing, logits, strict=True)

    def _shadows(self, climb: _Climb, row: int, target: Array) -> dict[int, Shadow]:
        """By layer what the exits that were looked at said in a row."""
        place, found = climb.length + row, {}
        try:
            law = climb.text.draft_law_at(target, place)
        except SelfspecError:  # nothing is allowed there: the text ended
            return {}
        for (at, layer), logits in climb.said.items():
            if at != row:
                continue
            try:
                right = 1.0 - law.excess(climb.text.draft_law_at(logits, place), 1.0)
            except SelfspecError:
                right = 0.0
            found[layer] = Shadow(climb.confidences.get((at, layer)) or top_probability(logits), right)
        return found
