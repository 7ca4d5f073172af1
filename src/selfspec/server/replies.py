"""What goes back: OpenAI's objects, whole or in chunks."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from selfspec.server.calls import Said, Speaker, delta_of, message_of
from selfspec.server.fields import ChatFields
from selfspec.server.logprobs import Echo, LogProbs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.flight import Progress
    from selfspec.model import Tokenizer
    from selfspec.model.tool_format import ToolFormat
    from selfspec.request import Chunk, Completion
    from selfspec.server.fields import TextFields

DONE = b"data: [DONE]\n\n"


def event(document: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(document, ensure_ascii=False, allow_nan=False)}\n\n".encode()


def written_by(progress: Progress) -> dict[str, Any]:
    """Who wrote the tokens of a round, in a field that OpenAI does not have: nothing where the round gave none.

    An accepted draft token is ``draft``, the target's own beside a draft ``bonus``, that of a round without a draft
    ``plain``. The text of a token is what became final with it, often nothing.
    """
    commit = progress.commit
    if commit is None:
        return {}
    own = "bonus" if commit.drafted else "plain"
    tokens = [{"text": chunk.text, "by": "draft" if chunk.source == "draft" else own} for chunk in progress.chunks]
    return {"selfspec": {"tokens": tokens, "drafted": commit.drafted, "accepted": commit.accepted}}


def _counted(prompt_tokens: int, written: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": written,
        "total_tokens": prompt_tokens + written,
    }


@dataclass
class Reply:
    """The frame of one answer: id, time and model are the same in all of its chunks."""

    asked: TextFields
    model: str
    tokenizer: Tokenizer
    fingerprint: str
    calls: ToolFormat | None = None
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.is_chat = isinstance(self.asked, ChatFields)
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        options = self.asked.stream_options
        self.has_usage = options is not None and options.include_usage
        self.counts_on = options is not None and options.continuous_usage_stats
        self.has_drafts = options is not None and options.include_drafts
        self._logprobs = LogProbs(self.tokenizer, self.is_chat)
        self._echoes: dict[int, Echo] = {}  # that come with the first tokens
        self._speakers: dict[int, Speaker] = {}

    def _said(self, index: int, chunks: Sequence[Chunk], is_last: bool) -> list[Said]:
        """What a choice of a chat says with new tokens: text, and pieces of calls where it may call."""
        if self.calls is None:
            text = "".join(chunk.text for chunk in chunks)
            return [Said(text)] if text else []
        if index not in self._speakers:
            assert isinstance(self.asked, ChatFields)
            assert self.asked.tool_use is not None
            self._speakers[index] = Speaker(self.calls, self.asked.tool_use.names, self.tokenizer)
        return self._speakers[index].said(chunks, is_last)

    # -- streamed -----------------------------------------------------------------------------------------

    def opening(self, index: int, echo: Echo) -> dict[str, Any] | None:
        """The first chunk of a choice: its role, or the prompt that it echoes; that waits for its scores."""
        if self.is_chat:
            return self._chunk([{"index": index, "delta": {"role": "assistant", "content": ""}}])
        self._logprobs.begin(index, echo)
        if echo.scores is not None:
            self._echoes[index] = echo
            return None
        return self._chunk([{"index": index, "text": echo.text}]) if echo.text else None

    def piece(self, index: int, progress: Progress) -> dict[str, Any] | None:
        """A round of one choice that has not failed; None where it has nothing to say."""
        end = progress.end
        assert not isinstance(end, Exception)
        chunks = () if self.asked.writes_nothing else progress.chunks
        echo = self._echoes.pop(index, Echo())
        logprobs = self._logprobs.of(index, chunks, echo)
        drafts = written_by(progress) if self.has_drafts else {}
        content = self._content(index, chunks, end is not None, echo.text)
        if not any(content.values()) and logprobs is None and end is None and not drafts:
            return None
        reason = None if end is None else self._reason(index, end)
        return self._chunk([{"index": index, **content, "logprobs": logprobs, "finish_reason": reason}]) | drafts

    def _content(self, index: int, chunks: Sequence[Chunk], is_last: bool, echoed: str) -> dict[str, Any]:
        """The new part of a choice."""
        if not self.is_chat:
            return {"text": echoed + "".join(chunk.text for chunk in chunks)}
        return {"delta": delta_of(self._said(index, chunks, is_last))}

    def _reason(self, index: int, end: Completion) -> str:
        """Why a choice ended; OpenAI names calls where there are any."""
        speaker = self._speakers.get(index)
        has_called = speaker is not None and speaker.has_called
        return "tool_calls" if has_called and end.finish_reason == "stop" else end.finish_reason

    def usage_chunk(self, ends: Sequence[Completion]) -> dict[str, Any]:
        """The last chunk: no choices, but what it took."""
        return self._chunk([]) | {"usage": self.usage(ends), **self._metrics(ends)}

    def so_far(self, prompt_tokens: int, written: int) -> dict[str, Any]:
        """What a chunk adds where each has a usage: tokens of the whole answer until now."""
        if not self.counts_on:
            return {}
        return {"usage": _counted(prompt_tokens, 0 if self.asked.writes_nothing else written)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        made = self._frame("chat.completion.chunk" if self.is_chat else "text_completion")
        made["choices"] = [{"logprobs": None, "finish_reason": None} | choice for choice in choices]
        return made | ({"usage": None} if self.has_usage else {})

    # -- whole --------------------------------------------------------------------------------------------

    def whole(self, texts: Sequence[tuple[Echo, Sequence[Chunk], Completion]]) -> dict[str, Any]:
        """The answer; of each choice what it echoes, its chunks and its end."""
        choices = [self._choice(index, *text) for index, text in enumerate(texts)]
        ends = [end for _, _, end in texts]
        made = self._frame("chat.completion" if self.is_chat else "text_completion")
        return made | {"choices": choices, "usage": self.usage(ends), **self._metrics(ends)}

    def _choice(self, index: int, echo: Echo, chunks: Sequence[Chunk], end: Completion) -> dict[str, Any]:
        if self.asked.writes_nothing:
            chunks = ()
        self._logprobs.begin(index, echo)
        choice: dict[str, Any] = {"index": index}
        if self.is_chat:
            text = end.text if self.calls is None else None
            choice["message"] = message_of(self._said(index, chunks, True), text)
        else:
            choice["text"] = echo.text + "".join(chunk.text for chunk in chunks)
        logprobs = self._logprobs.of(index, chunks, echo)
        return choice | {"logprobs": logprobs, "finish_reason": self._reason(index, end)}

    def usage(self, ends: Sequence[Completion]) -> dict[str, Any]:
        """Tokens of prompts, each counted once, and of all choices; those of predictions as OpenAI counts them."""
        prompts = sum(end.prompt_tokens for end in ends[:: self.asked.n])
        written = 0 if self.asked.writes_nothing else sum(len(end.token_ids) for end in ends)
        return _counted(prompts, written) | {
            "prompt_tokens_details": {"cached_tokens": sum(end.cached_tokens for end in ends[:: self.asked.n])},
            "completion_tokens_details": {
                "accepted_prediction_tokens": sum(end.stats.accepted_prediction_tokens for end in ends),
                "rejected_prediction_tokens": sum(end.stats.rejected_prediction_tokens for end in ends),
            },
        }

    def _metrics(self, ends: Sequence[Completion]) -> dict[str, Any]:
        """How a single text was drafted, in vLLM's words, and what decides that here."""
        if len(ends) != 1:
            return {}
        (end,) = ends
        stats = end.stats
        found = {
            "num_spec_steps": stats.rounds,
            "num_draft_tokens": stats.drafted,
            "num_accepted_draft_tokens": stats.accepted,
            "draft_acceptance_rate": stats.acceptance_rate,
            "mean_acceptance_length": stats.mean_accepted_length,
            "draft": end.draft,
            "gamma": end.gamma,
        }
        return {"metrics": {"speculative_decoding": found}}

    def _frame(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }
