"""Tool calls in the text of an answer, found while it comes."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selfspec.model import Tokenizer
    from selfspec.model.tool_format import ToolFormat
    from selfspec.request import Chunk


class Said(NamedTuple):
    """Text beside calls; or of the call with a ``number`` its ``name``, or a piece of its ``arguments``."""

    text: str = ""
    number: int = 0
    name: str = ""
    arguments: str = ""


class Calls:
    """Reads an answer with calls of ``names`` piece by piece; whatever could belong to a call is held back."""

    def __init__(self, form: ToolFormat, names: Sequence[str]) -> None:
        self._form, self._names = form, names
        self._held = ""
        self._state = self._text
        self._has_text = False
        self._json = _Value()
        self.count = 0

    def feed(self, text: str) -> list[Said]:
        """What is certain with the next piece."""
        self._held += text
        found: list[Said] = []
        while True:
            state, length = self._state, len(self._held)
            found += self._state()
            if self._state == state and len(self._held) == length:
                return found

    def finish(self) -> list[Said]:
        """What was held back when the answer ended and is text, not a part of a call."""
        form, held = self._form, self._held
        self._held = ""
        if self._state == self._name and form.is_bare and not self.count:
            return [Said(text=form.trigger + held)]  # it may as well be JSON
        if self._state in (self._name, self._arguments):
            return []
        if self._state == self._after:  # cut within the marks that end a call, or between two
            ends = [form.tail + form.end]
            if form.between is not None:
                ends.append(form.tail + form.between + form.head)
            if any(mark.startswith(held.rstrip()) for mark in ends):
                return []
        return [Said(text=held)] if held else []

    def _text(self) -> Iterator[Said]:
        trigger = self._form.trigger
        at = self._held.find(trigger)
        if self._form.is_bare and (self._has_text or at > 0):
            at = -1
        if at >= 0:
            before, self._held = self._held[:at], self._held[at + len(trigger) :]
            self._state = self._name
            if before.strip() or self._has_text:
                yield Said(text=before)
            return
        keep = _overlap(self._held, trigger)
        if self._form.is_bare and (self._has_text or keep < len(self._held)):
            keep = 0
        ready = self._held[: len(self._held) - keep]
        if ready and (self._has_text or ready.strip()):
            self._has_text, self._held = True, self._held[len(ready) :]
            yield Said(text=ready)

    def _name(self) -> Iterator[Said]:
        starts = {name + self._form.middle: name for name in self._names}
        if start := next((start for start in starts if self._held.startswith(start)), None):
            self._held, self._state, self._json = self._held[len(start) :], self._arguments, _Value()
            self.count += 1
            yield Said(number=self.count - 1, name=starts[start])
        elif not any(start.startswith(self._held) for start in starts):  # JSON that begins as a bare call does
            self._has_text, self._state = True, self._text
            yield Said(text=self._form.trigger)

    def _arguments(self) -> Iterator[Said]:
        length = self._json.take(self._held)
        piece, self._held = self._held[:length], self._held[length:]
        if self._json.is_over:
            self._state = self._after
        if piece:
            yield Said(number=self.count - 1, arguments=piece)

    def _after(self) -> Iterator[Said]:
        form = self._form
        if form.between is not None:
            again = form.tail + form.between + form.head
            if self._held.startswith(again):
                self._held, self._state = self._held[len(again) :], self._name
                return
            if again.startswith(self._held):
                return
        last = form.tail + form.end
        if self._held.startswith(last):
            self._held, self._state = self._held[len(last) :], self._rest
        yield from ()

    def _rest(self) -> Iterator[Said]:
        rest, self._held = self._held, ""
        if rest.strip():
            yield Said(text=rest)


class Speaker:
    """What one choice says, from its tokens: special tokens that belong to the format of calls are read as well."""

    def __init__(self, form: ToolFormat, names: Sequence[str], tokenizer: Tokenizer) -> None:
        self._calls = Calls(form, names)
        marks = (form.begin, form.head, form.middle, form.tail, form.between or "", form.end)
        pieces = {token: tokenizer.piece(token) or "" for token in tokenizer.special_ids}
        self._marks = {t: piece for t, piece in pieces.items() if piece and any(piece in mark for mark in marks)}

    @property
    def has_called(self) -> bool:
        """Whether a call has begun."""
        return self._calls.count > 0

    def said(self, chunks: Sequence[Chunk], is_last: bool) -> list[Said]:
        """What is certain with new tokens."""
        text = "".join(self._marks.get(chunk.token, "") + chunk.text for chunk in chunks)
        return [*self._calls.feed(text), *(self._calls.finish() if is_last else ())]


def delta_of(said: Sequence[Said]) -> dict[str, Any]:
    """A delta of OpenAI's: text, and calls, of which the first piece has id and name."""
    delta: dict[str, Any] = {}
    if text := "".join(piece.text for piece in said):
        delta["content"] = text
    calls: dict[int, dict[str, Any]] = {}
    for piece in said:
        if piece.name:
            calls[piece.number] = _begun(piece)
        elif piece.arguments:
            call = calls.setdefault(piece.number, {"index": piece.number, "function": {"arguments": ""}})
            call["function"]["arguments"] += piece.arguments
    return delta | ({"tool_calls": list(calls.values())} if calls else {})


def _begun(piece: Said) -> dict[str, Any]:
    """A call without arguments yet. Ids have nine characters: some chat templates take no others."""
    function = {"name": piece.name, "arguments": ""}
    return {"index": piece.number, "id": secrets.token_hex(5)[:9], "type": "function", "function": function}


def message_of(said: Sequence[Said], text: str | None) -> dict[str, Any]:
    """A whole message of OpenAI's; ``text`` is what it says where it cannot call."""
    delta = delta_of(said)
    calls = [
        {name: value for name, value in call.items() if name != "index"} for call in delta.get("tool_calls", ())
    ]
    content = delta.get("content") if text is None else text
    if content is None and not calls:
        content = ""
    return {"role": "assistant", "content": content, "refusal": None} | ({"tool_calls": calls} if calls else {})


class _Value:
    """Finds the end of an object in JSON that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._is_escaped = self.is_over = False

    def take(self, text: str) -> int:
        """How much of ``text`` belongs to the object."""
        for at, character in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_string:
                self._is_escaped, self._in_string = character == "\\", character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    self.is_over = True
                    return at + 1
        return len(text)


def _overlap(text: str, start: str) -> int:
    """The length of the longest end of ``text`` that begins ``start``."""
    longest = min(len(text), len(start) - 1)
    return next((length for length in range(longest, 0, -1) if start.startswith(text[-length:])), 0)
