"""Chains of drafters: one drafts for the next (staged speculation, arXiv 2308.04623), ``suffix>early_exit``.

The first stage proposes; every later one takes what there is and makes of it what it can (`Drafter.refine`):

- One that runs a pass (early exit, skipped layers, fewer bits, a second model) checks all tokens in one step of
  several rows, keeps them as far as they are what it would have drafted, adds the token that it says instead of the
  next one, and goes on alone. A token costs it a step; where the stage before is right, several cost one step of
  several rows, which is cheaper. What it hands on has its own law, whoever guessed it. Verification of the full
  model resumes from its states; a deeper exit resumes from those of a shallower one.
- One that copies (`ngram`, `suffix`) cannot tell whether tokens are right: it goes on after them, or proposes where
  there are none.
- Any other drafter proposes where there is nothing.

γ of the chain, or that of a stage that names more, limits the whole; a stage adds tokens of its own up to its own
γ. Stages hand on chains, so siblings belong to the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from selfspec import drafters
from selfspec.drafters.base import Drafter, DraftOptions, Extra, option
from selfspec.drafters.comb import chain_of
from selfspec.drafters.specs import ARROW, STAGED, parse_specs
from selfspec.errors import OptionError
from selfspec.prefixes import shared_length
from selfspec.types import Draft

if TYPE_CHECKING:
    from selfspec.context import Context, Text
    from selfspec.drafters.base import Host
    from selfspec.drafters.specs import Spec
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit, Round
    from selfspec.types import LayerPlan

_NO_STAGES = {
    "plain": "it drafts nothing",
    "auto": "it chooses among drafters: make the chain one of its candidates",
    "overlap": "it drafts while a draft is verified, and stages draft before that",
    STAGED: "write its stages one after the other",
}


@dataclass(frozen=True)
class StagedOptions(DraftOptions):
    """Options of `Staged`. A stage is a text, as on the command line, or a drafter."""

    gamma: int = option(7, "Most tokens to draft per round (γ), more where a stage names more.")
    stages: str | Sequence[str | Drafter] = option(
        (),
        "Drafters, each of which drafts for the next: suffix>early_exit:exit_layer=8; --draft takes it too.",
        opens=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.stages
        if not isinstance(given, str | Sequence) or not all(isinstance(stage, str | Drafter) for stage in given):
            raise OptionError(f"stages is {given!r}; it must be drafters with {ARROW} between them")
        entries = [given] if isinstance(given, str) else list(given)
        stages = [stage for entry in entries for stage in _split(entry)]
        if len(stages) < 2:
            raise OptionError(f"stages is {given!r}; give at least two, such as suffix{ARROW}early_exit")
        # equal chains are equal options, however they were written
        object.__setattr__(self, "stages", tuple(stages))
        object.__setattr__(self, "gamma", max(self.gamma, *map(_written_gamma, stages)))


def _split(entry: str | Drafter) -> list[str | Drafter]:
    return [entry] if isinstance(entry, Drafter) else [part.strip() for part in entry.split(ARROW)]


def _written_gamma(stage: str | Drafter) -> int:
    """The γ that a stage names, which the chain then has room for; 0 if it names none."""
    if isinstance(stage, Drafter):
        return stage.options.gamma
    given = dict(_spec(stage).given).get("gamma", "0")
    return int(given) if given.isdecimal() else 0  # what is wrong with it is said where the stage is made


def _spec(stage: str) -> Spec:
    specs = parse_specs(stage)
    if len(specs) != 1:
        raise OptionError(f"{stage!r} is no stage of a chain; write one drafter between two {ARROW}")
    return specs[0]


class Staged(Drafter):
    """Asks its stages in turn; see the module."""

    Options = StagedOptions
    name = STAGED
    summary = "drafters that draft for each other: --draft 'suffix>early_exit' checks a look-up in a shallow pass"
    paper = "staged speculative decoding (arXiv 2308.04623)"
    pays = "where a later stage is better than what it checks, such as `suffix>quantized`"

    def __init__(self, options: StagedOptions, config: ModelConfig) -> None:
        self._stages = [_stage(entry, options, config) for entry in options.stages]
        super().__init__(options, config)
        if early := [s.name for s in self._stages[:-1] if s.options.most_tokens > s.options.gamma]:
            raise OptionError(
                f"{early[0]} would draft siblings for the next stage; only the last one may have them"
            )
        if watching := [s.name for s in self._stages if s.exits]:
            raise OptionError(
                f"{watching[0]} learns from drafts that are verified as it made them, which a chain may change; "
                "name its exit layer"
            )
        self.name = ARROW.join(stage.name for stage in self._stages)
        self.samples = any(stage.samples for stage in self._stages)
        self.is_free = all(stage.is_free for stage in self._stages)
        self._handed: dict[Text, list[Draft]] = {}

    @property
    def parts(self) -> tuple[Drafter, ...]:
        """The stages."""
        return tuple(part for stage in self._stages for part in stage.parts)

    @property
    def plan(self) -> LayerPlan | None:
        """That of the last stage that runs layers of the model."""
        return next((plan for stage in reversed(self._stages) if (plan := stage.plan) is not None), None)

    @property
    def runs(self) -> str:
        """What the stages run, of those that run something."""
        return f" {ARROW} ".join(stage.runs for stage in self._stages if stage.runs != "none") or "none"

    @property
    def extra_bytes(self) -> Extra:
        """What all stages bring."""
        brought = [stage.extra_bytes for stage in self._stages]
        return Extra(sum(extra.weights for extra in brought), sum(extra.kv for extra in brought))

    @property
    def uses_prediction(self) -> bool:
        """Whether a stage does."""
        return any(stage.uses_prediction for stage in self._stages)

    def bind(self, host: Host) -> None:
        """Each stage takes what it needs."""
        for stage in self._stages:
            stage.bind(host)

    def begin(self, text: Text) -> None:
        """Tell every stage."""
        for stage in self._stages:
            stage.begin(text)
        self._handed[text] = []

    def end(self, text: Text) -> None:
        """Tell every stage."""
        del self._handed[text]
        for stage in self._stages:
            stage.end(text)

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """What the last stage makes of what the one before it has made, and so on."""
        for text in texts:
            self._handed[text] = []
        drafts = [Draft()] * len(texts)
        for stage in self._stages:
            drafts = stage.refine(context, texts, gammas, [chain_of(draft) for draft in drafts])
            for text, draft in zip(texts, drafts, strict=True):
                self._handed[text].append(draft)
        return drafts

    def observe(self, text: Text, commit: Commit) -> None:
        """Every stage learns how much of what it has handed on has come, had it been verified."""
        for stage, draft in zip(self._stages, self._handed[text], strict=False):
            held = shared_length(draft.tokens[: len(draft.widths)], commit.tokens)
            is_last = stage is self._stages[-1]
            stage.observe(text, commit if is_last else replace(commit, widths=draft.widths, accepted=held))

    def timed(self, texts: Sequence[Text], round_: Round) -> None:
        """Tell every stage."""
        for stage in self._stages:
            stage.timed(texts, round_)


def _stage(entry: str | Drafter, options: StagedOptions, config: ModelConfig) -> Drafter:
    """One stage; confidence and adaptation of the chain are those of stages that do not say their own."""
    if isinstance(entry, Drafter):
        _refuse(entry.name if not isinstance(entry, Staged) else STAGED)
        return drafters.create(entry, config, {})
    spec = _spec(entry)
    _refuse(spec.name)
    cls = drafters.drafter_class(spec.name)
    shared: dict[str, float | bool] = {}
    if options.confidence:
        shared["confidence"] = options.confidence
    if options.adaptive:
        shared["adaptive"] = True
    return drafters.create(cls, config, shared | spec.options(cls.Options))


def _refuse(name: str) -> None:
    if name in _NO_STAGES:
        raise OptionError(f"{name} cannot be a stage of a chain: {_NO_STAGES[name]}")
