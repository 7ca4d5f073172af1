"""Our own columns: a drafter with its options, on the engine that all of them share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec import drafters
from selfspec.measure.prices import keeps
from selfspec.measure.timing import Answer, Ask, Column

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec.engine import Engine
    from selfspec.request import Chunk

BASELINE = "plain"


class DrafterColumn(Column):
    """Answers with one drafter. Raises OptionError if the model cannot have these options."""

    is_ours = True

    def __init__(self, engine: Engine, label: str, draft: str, options: dict[str, Any]) -> None:
        drafter = drafters.create(draft, engine.config, options, engine)
        self.name = label
        self.about = {
            "runtime": engine.runtime.name,
            "precision": engine.runtime.precision,
            "plan": drafter.runs,
            "keeps": keeps(draft, options),
        }
        self._engine = engine
        self._options = {**options, "draft": draft}

    def answer(self, ask: Ask, first: Callable[[], None]) -> Answer:
        """Stream the answer, as a user would."""
        stream = self._engine.stream(
            ask.prompt,
            max_new_tokens=ask.max_new_tokens,
            temperature=ask.temperature,
            seed=ask.seed,
            ignore_eos=ask.ignore_eos,
            **self._options,
        )
        chunks: list[Chunk] = []
        for chunk in stream:
            if not chunks:
                first()
            chunks.append(chunk)
        done = stream.completion
        draft = {"draft weights": done.draft_weight_bytes, "draft KV": done.draft_kv_bytes}
        memory = {"KV cache": done.kv_bytes, **draft, **done.buffers}
        pieces = [(chunk.text, chunk.source) for chunk in chunks]
        return Answer(done.token_ids, done.text, done.stats, pieces, memory)
