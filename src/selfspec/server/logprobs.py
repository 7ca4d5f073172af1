"""Log probabilities in OpenAI's two forms, and the echo of a prompt with its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from selfspec.model import TextStream
from selfspec.model.token_bytes import token_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from selfspec.model import Tokenizer
    from selfspec.request import Chunk
    from selfspec.rounds import Score
    from selfspec.scoring import PromptScores


class Echo(NamedTuple):
    """What a choice repeats of its prompt: the text, and the scores of its tokens where they are asked for."""

    text: str = ""
    tokens: Sequence[int] = ()
    scores: PromptScores | None = None


class LogProbs:
    """Those of the tokens of all choices, end-of-text included; an offset is where a token's text begins."""

    def __init__(self, tokenizer: Tokenizer, is_chat: bool) -> None:
        self._tokenizer, self._is_chat = tokenizer, is_chat
        self._offsets: dict[int, int] = {}

    def begin(self, index: int, echo: Echo) -> None:
        """Text that a choice has before its new tokens, without their scores."""
        self._offsets[index] = len(echo.text) if echo.scores is None else 0

    def of(self, index: int, chunks: Sequence[Chunk], echo: Echo | None = None) -> dict[str, Any] | None:
        """Those of new tokens, after those of an ``echo``; None where they were not asked for."""
        scored = [(chunk.token, chunk.text, chunk.score) for chunk in chunks if chunk.score is not None]
        if self._is_chat:
            return {"content": [self._entry(*one) for one in scored], "refusal": None} if scored else None
        before = [] if echo is None or echo.scores is None else self._of_prompt(echo.tokens, echo.scores)
        return self._of_text(index, [*before, *scored]) if before or scored else None

    def _of_prompt(self, tokens: Sequence[int], found: PromptScores) -> list[tuple[int, str, Score | None]]:
        writer = TextStream(self._tokenizer)
        texts = [writer.push(token) for token in tokens]
        texts[-1] += writer.finish()
        return list(zip(tokens, texts, [None, *found.scores], strict=True))

    def _entry(self, token: int, _text: str, score: Score) -> dict[str, Any]:
        top = [self._token(likely, logprob) for likely, logprob in score.top]
        return {**self._token(token, score.logprob), "top_logprobs": top}

    def _of_text(self, index: int, entries: Iterable[tuple[int, str, Score | None]]) -> dict[str, Any]:
        found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, text, score in entries:
            top = None if score is None else {self._spelled(likely): _finite(p) for likely, p in score.top}
            found["tokens"].append(self._spelled(token))
            found["token_logprobs"].append(None if score is None else _finite(score.logprob))
            found["top_logprobs"].append(top)
            found["text_offset"].append(self._offsets[index])
            self._offsets[index] += len(text)
        return found

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._spelled(token),
            "logprob": _finite(logprob),
            "bytes": list(token_bytes(self._tokenizer, token)),
        }

    def _spelled(self, token: int) -> str:
        """A token as text; a part of a character as its bytes, in OpenAI's spelling."""
        raw = token_bytes(self._tokenizer, token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(logprob: float) -> float:
    """JSON has no infinity; -9999 is what OpenAI says instead."""
    return max(logprob, -9999.0)
