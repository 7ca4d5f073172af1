"""Incremental detokenisation and stop strings: text that is final, as soon as it is."""

from __future__ import annotations

import codecs
import re
from functools import cache
from typing import TYPE_CHECKING, Protocol

from selfspec.errors import OptionError, UnsupportedModelError
from selfspec.model.reading import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from selfspec.model.tokenizer import Tokenizer


class TextStream:
    """The text of a growing token sequence; what it returns is never taken back.

    All ``push`` and ``finish`` results together are ``tokenizer.decode`` of all tokens, cut before the stop
    string that is complete first (of several complete at the same character, the longest). That cut depends
    on the text alone: not on how tokens split it, nor on whether they come one by one or in bursts.
    Held back are incomplete UTF-8 sequences and whatever could be the beginning of a stop string; the cost
    of a token does not grow with the text.

    Raises
    ------
    OptionError
        ``stop`` is not a sequence of non-empty strings.
    UnsupportedModelError
        The tokenizer joins its pieces in a way that is not known here.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._stops = check_stop(stop)
        self._tokenizer = tokenizer
        self._joiner = joiner_of(tokenizer.decoder)
        self._held = ""
        self._parts: list[str] = []
        self._is_stopped = False
        self._is_finished = False

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has appeared."""
        return self._is_stopped

    @property
    def text(self) -> str:
        """Everything that is final so far."""
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    def push(self, token: int) -> str:
        """Add one token; returns the text that became final with it. After a stop it is always empty."""
        assert not self._is_finished
        if self._is_stopped or token in self._tokenizer.special_ids:
            return ""
        piece = self._tokenizer.piece(token)
        return "" if piece is None else self._emit(self._joiner.feed(piece))

    def finish(self) -> str:
        """No token will follow; returns what was held back. After a stop it is empty."""
        if self._is_finished or self._is_stopped:
            return ""
        self._is_finished = True
        text = self._emit(self._joiner.flush())
        rest, self._held = self._held, ""
        self._parts.append(rest)
        return text + rest

    def _emit(self, new: str) -> str:
        """Move what became final from the window (held back + new) to the parts."""
        if not new:
            return ""
        window = self._held + new
        end = self._stop_start(window)
        if end is None:
            end = len(window) - self._held_length(window)
            self._held = window[end:]
        else:
            self._is_stopped, self._held = True, ""
        self._parts.append(window[:end])
        return window[:end]

    def _stop_start(self, window: str) -> int | None:
        found = [(at + len(stop), at) for stop in self._stops if (at := window.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _held_length(self, window: str) -> int:
        """Length of the longest end of the window that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(window)), 0, -1):
            if any(stop.startswith(window[-length:]) for stop in self._stops):
                return length
        return 0


def _is_stop(item: object) -> bool:
    return isinstance(item, str) and item != ""


def check_stop(stop: Sequence[str]) -> tuple[str, ...]:
    """The stop strings as a tuple.

    Raises
    ------
    OptionError
        They are one string instead of a sequence of strings, or one of them is empty.
    """
    if isinstance(stop, str) or not isinstance(stop, list | tuple) or not all(map(_is_stop, stop)):
        raise OptionError(
            f"stop is {one_line(repr(stop), 80)}; it must be a list of non-empty strings, such as ['\\n\\n']"
        )
    if any(item.encode("utf-8", "ignore").decode() != item for item in stop):
        raise OptionError("stop has bytes that are not valid UTF-8; check the locale of the terminal")
    return tuple(stop)


# -- how pieces of the vocabulary become text ---------------------------------------------------------------


class Joiner(Protocol):
    """One tokenizer decoder as a machine that is fed piece by piece."""

    def feed(self, piece: str) -> str:
        """Add a piece; returns the text that no later piece can change."""

    def flush(self) -> str:
        """Return the text of what was held back."""


def joiner_of(decoder: dict[str, Any] | None) -> Joiner:
    """The machine for a ``decoder`` of ``tokenizer.json``; None joins pieces with spaces.

    Raises
    ------
    UnsupportedModelError
        A decoder other than ByteLevel, Metaspace, or those that SentencePiece models use.
    """
    if decoder is None:
        return _Words()
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _ByteLevel()
    if kinds == ["Metaspace"]:
        return _Metaspace(steps[0])
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and kinds[3:] in ([], ["Strip"]) and _is_plain(steps):
        return _SentencePiece(steps)
    raise UnsupportedModelError(
        f"the tokenizer's decoder {'+'.join(kinds)} is not supported; supported: ByteLevel, Metaspace, "
        "Replace+ByteFallback+Fuse (+Strip at the start)"
    )


def _is_plain(steps: list[dict[str, Any]]) -> bool:
    return "String" in steps[0]["pattern"] and (len(steps) < 4 or steps[3]["stop"] == 0)


class _Words:
    def __init__(self) -> None:
        self._gap = ""

    def feed(self, piece: str) -> str:
        text, self._gap = self._gap + piece, " "
        return text

    def flush(self) -> str:
        return ""


class _ByteLevel:
    """GPT-2's: every character of a piece stands for one byte."""

    def __init__(self) -> None:
        self._bytes = byte_of_character()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: str) -> str:
        try:
            raw = bytes([self._bytes[character] for character in piece])
        except KeyError:  # an added token that is spelled as plain text
            raw = piece.encode()
        return self._utf8.decode(raw)

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


@cache
def byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes are spelled as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(0x100)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class _Metaspace:
    def __init__(self, step: dict[str, Any]) -> None:
        self._mark = step["replacement"]
        self._space = "" if step.get("prepend_scheme", "always") != "never" else " "

    def feed(self, piece: str) -> str:
        text, self._space = piece.replace(self._mark, self._space), " "
        return text

    def flush(self) -> str:
        return ""


class _SentencePiece:
    """Llama 2's and Gemma's: a mark for the space, ``<0xE4>`` for single bytes, a space cut at the start.

    A run of byte pieces is final only when it ends: the library turns the whole run into U+FFFD if any
    part of it is not UTF-8.
    """

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self._mark, self._space = steps[0]["pattern"]["String"], steps[0]["content"]
        strip: dict[str, Any] = steps[3] if len(steps) > 3 else {"content": " ", "start": 0}
        self._content, self._to_strip = strip["content"], strip["start"]
        self._run = bytearray()

    def feed(self, piece: str) -> str:
        piece = piece.replace(self._mark, self._space)
        byte = byte_piece(piece)
        if byte is not None:
            self._run.append(byte)
            return ""
        return self._strip(self._end_run() + piece)

    def flush(self) -> str:
        return self._strip(self._end_run())

    def _end_run(self) -> str:
        raw, self._run = bytes(self._run), bytearray()
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(raw)

    def _strip(self, text: str) -> str:
        while text and self._to_strip:
            if not text.startswith(self._content):
                self._to_strip = 0
                break
            text, self._to_strip = text[len(self._content) :], self._to_strip - 1
        return text


def byte_piece(piece: str) -> int | None:
    """The byte that SentencePiece spells as ``<0xE4>``; None for any other piece."""
    found = re.fullmatch(r"<0x([+0-9A-Fa-f][0-9A-Fa-f])>", piece)  # "+": as the library's parser does
    return int(found[1], 16) if found else None
