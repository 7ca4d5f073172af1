"""A second, smaller model drafts (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

It has a runtime, a precision and a cache of its own. What it has read of a text is a run of tokens that only
ever has to be extended: positions are arguments, so a draft token that was rejected is simply written over.
Before it drafts, all that is missing is run in one pass: at first the prompt, in chunks; after a round the
pending token; and after a draft that was accepted whole its last token too, which nobody has run yet.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from selfspec.context import PREFILL_ROWS
from selfspec.drafters.ahead import Ahead
from selfspec.drafters.base import Extra, option
from selfspec.drafters.branches import branches_of, rows_of
from selfspec.drafters.caches import OwnCaches
from selfspec.drafters.comb import CombOptions
from selfspec.drafters.steps import Growing, StepDrafter
from selfspec.drafters.vocabulary import as_wide, require_same_tokens
from selfspec.errors import OptionError
from selfspec.joining import concatenate
from selfspec.types import LayerPlan, Rows, require_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Host
    from selfspec.model.config import ModelConfig
    from selfspec.runtime.base import Cache, Runtime
    from selfspec.types import Array, Draft

BITS = (4, 8, 16, 32)
RUNTIMES = ("auto", "cpu", "torch")


@dataclass(frozen=True)
class DraftModelOptions(CombOptions):
    """Options of `DraftModel`."""

    draft_model: str | None = option(
        None, "Model that drafts: folder, .gguf file or hub id; it must have the target's tokenizer.", opens=True
    )
    draft_runtime: str | None = option(None, "cpu, torch or auto. Default: that of the target.", opens=True)
    draft_bits: int | None = option(
        None, "cpu: bits a weight of the draft: 4, 8, 16 or 32 (quantized: 4 or 8). Default: as stored.", opens=True
    )
    draft_threads: int | None = option(None, "cpu: how many threads draft. Default: as many as verify.", opens=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        model: Any = self.draft_model
        if isinstance(model, os.PathLike):
            object.__setattr__(self, "draft_model", os.fspath(model))
        elif not isinstance(model, str) or not model:
            raise OptionError(
                f"draft_model is {model!r}; it must name the model that drafts: a folder, a .gguf file or a hub id"
            )
        if self.draft_runtime not in (None, *RUNTIMES):
            raise OptionError(f"draft_runtime is {self.draft_runtime!r}; it must be one of {', '.join(RUNTIMES)}")
        if self.draft_bits not in (None, *BITS):
            raise OptionError(
                f"draft_bits is {self.draft_bits}; it must be one of {', '.join(map(str, BITS))}, or left out"
            )
        require_least(self, draft_threads=1)
        if self.draft_runtime == "torch" and (self.draft_bits or self.draft_threads):
            raise OptionError("draft_bits and draft_threads are for draft_runtime cpu; leave one out")

    def placement(self, target: dict[str, Any]) -> dict[str, Any]:
        """Where the draft runs, beside a target with this placement."""
        needs_core = self.draft_bits is not None or self.draft_threads is not None
        runtime = self.draft_runtime or ("cpu" if needs_core else target["runtime"])
        placed = dict(target) if target["runtime"] == runtime else {"runtime": runtime}
        own = {"bits": self.draft_bits, "threads": self.draft_threads}
        return placed | {name: value for name, value in own.items() if value is not None}


class _Reading:
    """What a draft model has the keys and values of, for one text: ``known`` tokens, then those that it guessed."""

    def __init__(self) -> None:
        self.known = 0
        self.guessed: list[int] = []

    def resume(self, tokens: Sequence[int]) -> int:
        """The place of the first of the committed ``tokens`` that must be run; the last one always is."""
        for guess in self.guessed:
            if self.known >= len(tokens) or tokens[self.known] != guess:
                break
            self.known += 1
        self.guessed.clear()
        self.known = min(self.known, len(tokens) - 1)
        return self.known


class DraftModel(StepDrafter):
    """Drafts with a second model that has the target's vocabulary."""

    Options = DraftModelOptions
    name = "draft_model"
    summary = "a second, smaller model with the same tokenizer; extra weights and KV of its own"
    paper = "speculative decoding: Leviathan et al. (arXiv 2211.17192), Chen et al. (2302.01318)"
    pays = (
        "where a much smaller model with the same tokenizer is nearly as right, and there is room for its "
        "weights and cache"
    )
    looks_ahead = True
    usual_alpha = 0.6

    def __init__(self, options: DraftModelOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._settings = options
        self._model: Runtime | None = None
        self._label = str(options.draft_model)
        self._share: float | None = None
        self._row_layers = 0.0  # what a row costs, in row-layers of the target
        self._readings: dict[Text, _Reading] = {}
        self._caches = OwnCaches()
        self._spare = 0  # cells beside a text, for what may come of it

    def bind(self, host: Host) -> None:
        """Open the model, and compare its vocabulary with the target's."""
        draft = host.open_model(self._settings.draft_model, **self._settings.placement(host.runtime.placement))
        host.kept(("same tokens", draft.fingerprint, draft.name), lambda: require_same_tokens(host, draft))
        model = draft.runtime
        self._row_layers = (
            model.config.num_layers * model.config.active_layer_parameters / self.config.active_layer_parameters
        )
        self._share = model.pass_bytes / host.runtime.pass_bytes
        self._model, self._label = model, f"{draft.name} {model.precision}"

    @property
    def step_share(self) -> float | None:
        """Bytes of a pass ÷ those of the target's."""
        return self._share

    @property
    def runs(self) -> str:
        """The model and its precision."""
        return self._label

    @property
    def extra_bytes(self) -> Extra:
        """Its weights, and its cache of one text."""
        return Extra() if self._model is None else Extra(self._model.weight_bytes, self._caches.bytes_per_text)

    def begin(self, text: Text) -> None:
        """Nothing of the text has been read yet."""
        super().begin(text)
        self._readings[text] = _Reading()

    def end(self, text: Text) -> None:
        """Forget it; its cells are written over by the next text of its slot, and freed with the last."""
        super().end(text)
        del self._readings[text]

    def refine(
        self, context: Context, texts: Sequence[Text], gammas: Sequence[int], drafts: Sequence[Draft]
    ) -> list[Draft]:
        """As any chain, within the context of the draft model."""
        last = self._bound.config.context_length + 1
        within = [max(0, min(gamma, last - len(text.tokens))) for text, gamma in zip(texts, gammas, strict=True)]
        return super().refine(context, texts, within, drafts)

    def step(self, context: Context, growing: Sequence[Growing]) -> Array:
        """Run what the model has not read of each text, the next rows of its draft included."""
        logits, slots = self._read(context, growing)
        context.count(slots, self._row_layers)
        return logits

    def _read(self, context: Context, growing: Sequence[Growing]) -> tuple[Array, list[int]]:
        """The logits of the next rows of each draft, and the slot of every row that had to run."""
        slots: list[int] = []
        places: list[int] = []
        tokens: list[int] = []
        last: list[int] = []
        for one in growing:
            text, first, unread = one.text, *self._unread(one)
            slots += [text.slot] * len(unread)
            places += range(first, first + len(unread))
            tokens += unread
            last += range(len(tokens) - len(one.rows), len(tokens))
        hidden = self._run(self._cache(context), tokens, Rows.of(slots, places), last)
        return as_wide(self._bound.logits(hidden), self.config.vocab_size), slots

    def look_ahead_with(self, outcomes: int) -> None:
        """Have room for so many drafts beside each text."""
        if self._bound.config.recurrences:
            raise OptionError(
                f"{self._label} has recurrent layers, which cannot draft for several outcomes at once: "
                "draft with it without overlap"
            )
        self._spare = outcomes * self.options.gamma

    def ahead(
        self, context: Context, texts: Sequence[Text], drafts: Sequence[Draft], fans: Sequence[Sequence[int]]
    ) -> list[Ahead]:
        """Drafts for the likeliest tokens of this model after every number of accepted ones.

        One pass reads the draft, and what was not read before it; then the branches grow together, a row each.
        """
        found = {text: Ahead() for text in texts}
        last = self._bound.config.context_length - self.options.gamma
        trunks = [
            Growing(self._combs, text, len(draft) + 1, draft)
            for text, draft in zip(texts, drafts, strict=True)
            if len(text.tokens) + len(draft) < last and text.room() > 1
        ]
        if not trunks:
            return list(found.values())
        logits, slots = self._read(context, trunks)
        edges = pairwise(accumulate((len(trunk.rows) for trunk in trunks), initial=0))
        wanted = dict(zip(texts, fans, strict=True))
        branches = [
            branch
            for trunk, (start, stop) in zip(trunks, edges, strict=True)
            for branch in branches_of(self._combs, trunk, logits[start:stop], wanted[trunk.text])
            if branch.gamma > 0 and branch.bonus not in self.config.eos_token_ids
        ]
        growing = branches
        while growing:
            rows, tokens = rows_of(growing), [branch.last for branch in growing]
            slots += rows.slots.tolist()
            hidden = self._run(self._cache(context), tokens, rows, range(len(tokens)))
            steps = zip(growing, as_wide(self._bound.logits(hidden), self.config.vocab_size), strict=True)
            growing = [branch for branch, row in steps if self._grow(branch, row) and branch.depth < branch.gamma]
        for branch in branches:
            found[branch.text].drafts[branch.outcome] = branch.comb.draft()
        for text in texts:
            found[text].row_layers = slots.count(text.slot) * self._row_layers
        return list(found.values())

    @property
    def _bound(self) -> Runtime:
        assert self._model is not None, "no engine has bound this drafter"
        return self._model

    def _unread(self, one: Growing) -> tuple[int, list[int]]:
        """The place of the first token to run, and the tokens from there to the last row of the draft."""
        reading, text = self._readings[one.text], one.text
        if one.depth:
            reading.guessed[one.depth - 1 :] = one.rows
            return len(text.tokens) - 1 + one.depth, one.rows
        first = reading.resume(text.tokens)
        reading.known = len(text.tokens)
        reading.guessed = one.rows[1:]
        return first, [*text.tokens[first:], *one.rows[1:]]

    def _run(self, cache: Cache, tokens: Sequence[int], rows: Rows, last: Sequence[int]) -> Array:
        """All layers over ``rows``, in chunks; the states [len(last), d] of the rows ``last``."""
        model, kept = self._bound, []
        plan, size = LayerPlan.full(model.config.num_layers), model.config.vocab_size
        read = [token if token < size else 0 for token in tokens]  # of padding that only the target has
        for start in range(0, len(tokens), PREFILL_ROWS):
            stop = min(start + PREFILL_ROWS, len(tokens))
            part = rows.take(range(start, stop))
            hidden, _ = model.run(model.embed(read[start:stop], part.positions), plan, part, cache)
            if ends := [row - start for row in last if start <= row < stop]:
                kept.append(hidden[ends])
        return concatenate(kept)

    def _cache(self, context: Context) -> Cache:
        """One for each context, with its slots; as long as its own, or as this model can read."""
        length = min(context.cache.length, self._bound.config.context_length)
        return self._caches.of(context, length + self._spare, self._bound.new_cache)
