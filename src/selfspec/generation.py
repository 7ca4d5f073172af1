"""One generation from request to result, however it is run: as a stream, or among others in a batch."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from selfspec.context import Text
from selfspec.drafters.buffers import draft_buffers
from selfspec.errors import OptionError
from selfspec.model import TextStream
from selfspec.request import Chunk, Completion, Request, Source
from selfspec.rounds import Score, Stats
from selfspec.runtime.states import plain_bytes
from selfspec.sampling import Chance
from selfspec.scoring import PromptScores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from selfspec.drafters.base import Drafter
    from selfspec.engine import Engine
    from selfspec.grammar import Grammar
    from selfspec.rounds import Round
    from selfspec.runtime.base import Cache
    from selfspec.types import Sampling


class Generation:
    """The prompt, the request and the drafter of one text; its text so far, its sums, its result."""

    def __init__(self, engine: Engine, prompt: Sequence[int], request: Request, drafter: Drafter) -> None:
        self._engine = engine
        self.prompt = prompt
        self.drafter = drafter
        self._sampling = request.sampling(engine.config, engine.tokenizer, len(prompt))
        self._seed = secrets.randbits(32) if request.seed is None else request.seed
        self.limit = request.limit(engine.config, len(prompt))
        writer = TextStream(engine.tokenizer, request.stops) if engine.tokenizer else None
        self._prediction = request.predicted(engine.config, engine.tokenizer)
        if self._prediction and not drafter.uses_prediction:
            raise OptionError(
                f"the drafter {drafter.name!r} does not use a prediction; leave it out, or use suffix"
            )
        grammar = engine.grammar(request)
        self._sampling = replace(self._sampling, constraint=grammar)
        least = max(request.min_tokens, request.min_length - len(prompt))
        ends = () if request.ignore_eos else engine.config.eos_token_ids
        self._ending = Ending(writer, ends, grammar, least)
        self._ends: Callable[[int], bool] = self._ending
        self._stats = Stats()
        self._logprobs = request.logprobs
        self._scores: list[Score] = []
        count = request.prompt_logprobs
        self.prompt_scores = None if count is None else PromptScores(prompt, count)

    def decide_by(self, sampling: Sampling, ends: Callable[[int], bool]) -> None:
        """Let ``sampling`` and ``ends`` decide in place of what the request asks for; before `open`.

        For who brings rules that no request can state (`selfspec.hf`); there are no chunks then.
        """
        self._sampling, self._ends = sampling, ends

    def open(self, index: int, slot: int, cached: int = 0) -> Text:
        """Its text, in a slot that holds the first ``cached`` tokens of the prompt."""
        chance = Chance(self._seed)
        return Text(
            index,
            slot,
            list(self.prompt),
            self.limit,
            self._sampling,
            chance,
            self._ends,
            cached,
            self._prediction,
            logprobs=self._logprobs,
            prompt_scores=self.prompt_scores,
        )

    @property
    def can_reuse(self) -> bool:
        """Whether cells may serve that another text has left: not where all rows of the prompt must run."""
        reads = any(part.reads_prompt_states for part in self.drafter.parts)
        return self.prompt_scores is None and not reads

    def take(self, round_: Round) -> list[Chunk]:
        """Count a round of this text alone, and give what it added."""
        self._stats.add(round_)
        (commit,) = round_.commits
        self._scores += commit.scores
        own: Source = "bonus" if commit.drafted else "plain"
        is_last = commit.finish_reason is not None
        return list(self._ending.chunks(commit.accepted, is_last, own, commit.scores))

    def rest(self) -> list[Chunk]:
        """What was accepted before an error ended the round, all of it drafts; plain decoding would show it."""
        return list(self._ending.chunks(self.limit, False, "bonus"))

    @property
    def text(self) -> str:
        """All final text so far."""
        return self._ending.text

    @property
    def prediction(self) -> Sequence[int]:
        """Tokens that the answer is expected to hold."""
        return self._prediction

    def completion(self, text: Text, cache: Cache) -> Completion:
        """The result, when ``text``, in a slot of ``cache``, has ended."""
        assert text.finish_reason is not None
        engine, drafter = self._engine, self.drafter
        extra = drafter.extra_bytes
        return Completion(
            text=self.text,
            token_ids=tuple(text.tokens[len(self.prompt) :]),
            prompt_tokens=len(self.prompt),
            finish_reason=text.finish_reason,
            stats=self._stats,
            seed=self._seed,
            model=engine.name,
            runtime=engine.runtime.name,
            runs_on=engine.runtime.runs_on,
            precision=engine.runtime.precision,
            draft=drafter.name,
            plan=drafter.runs,
            gamma=drafter.options.gamma,
            kv_bytes=cache.nbytes // cache.slots,
            state_bytes=(states := cache.state_bytes // cache.slots),
            rollback_bytes=states and states - plain_bytes(engine.config, engine.runtime.value_bytes),
            buffers=draft_buffers(engine.config, drafter, self._sampling, engine.runtime.value_bytes),
            draft_weight_bytes=extra.weights,
            draft_kv_bytes=extra.kv,
            explanation=text.explanation,
            scores=None if self._logprobs is None else tuple(self._scores),
            prompt_scores=None if self.prompt_scores is None else tuple(self.prompt_scores.scores),
        )


class Ending:
    """Decides after every token whether the text is complete, and keeps the text that each one released.

    It is also complete where its grammar allows nothing more, unless it must have ``least`` tokens: then the next
    one finds that the two contradict each other.
    """

    def __init__(
        self, writer: TextStream | None, eos: tuple[int, ...], grammar: Grammar | None = None, least: int = 0
    ) -> None:
        self._writer = writer
        self._eos = eos
        self._grammar, self._left = grammar, least
        self._new: list[tuple[int, str]] = []

    def __call__(self, token: int) -> bool:
        """Take a new token; True if the text is complete with it."""
        ended = token in self._eos
        piece = "" if ended or self._writer is None else self._writer.push(token)
        self._new.append((token, piece))
        self._left -= 1
        if ended or (self._writer is not None and self._writer.is_stopped):
            return True
        return self._grammar is not None and self._grammar.ends(token) and self._left <= 0

    @property
    def text(self) -> str:
        """All final text."""
        return "" if self._writer is None else self._writer.text

    def chunks(self, accepted: int, is_last: bool, own: Source, scores: Sequence[Score] = ()) -> Iterator[Chunk]:
        """The tokens since the last call; the first ``accepted`` were drafted, and ``own`` is what the rest is."""
        new, self._new = self._new, []
        for i, (token, piece) in enumerate(new):
            rest = self._writer.finish() if is_last and self._writer and i == len(new) - 1 else ""
            yield Chunk(piece + rest, token, "draft" if i < accepted else own, scores[i] if scores else None)
