"""Random changes of valid files: bytes, JSON and the length fields of binary heads, each from one random stream."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

NUMBERS = (-1, 0, 1, 2, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    *NUMBERS, None, True, False, "", "a", "../../../etc/passwd", "/etc/passwd", "..\\..\\x", "\ud800", "\x00",
    "a" * 5000,
    [], {}, [[]], [None], {"": None}, 0.0, -0.0, 1e-320, 1e308, float("nan"), float("inf"), 10**40, "NaN", "1",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ 'a' * 10**9 }}",
    "{% for i in range(10**9) %}{% endfor %}",
    ["../x"], [1e400], "float8_e4m3fn", "model", [0] * 300, {"a": {"b": {"c": []}}},
)  # fmt: skip


def change_bytes(data: bytes, random: Random) -> bytes:
    """A few bytes of a file."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = _place(len(found), random)
        kind = random.randrange(7)
        if kind == 0 and found:
            found[at % len(found)] ^= 1 << random.randrange(8)
        elif kind == 1:
            del found[at : at + random.choice((1, 4, 8, 100))]
        elif kind == 2:
            found[at:at] = random.randbytes(random.choice((1, 4, 8, 100)))
        elif kind == 3:
            del found[at:]
        elif kind == 4:
            found[at : at + 8] = struct.pack("<Q", random.choice(NUMBERS) % 2**64)
        elif kind == 5:
            found[at : at + 4] = struct.pack("<I", random.choice(NUMBERS) % 2**32)
        else:
            other = _place(len(found), random)
            found[at:at] = found[other : other + random.choice((8, 64, 1000))]
    return bytes(found)


def _place(size: int, random: Random) -> int:
    """Mostly near the beginning, where heads are."""
    return random.randrange(min(size, random.choice((16, 64, 512, size + 1))) + 1)


def change_json(data: bytes, random: Random) -> bytes:
    """A value, a key or an element of a JSON document; now and then its bytes."""
    if random.random() < 0.1:
        return change_bytes(data, random)
    try:
        document = json.loads(data)
    except ValueError:
        return change_bytes(data, random)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        document = _changed(document, random)
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _changed(document: Any, random: Random) -> Any:
    places: list[tuple[Any, Any]] = []
    _walk(document, places)
    if not places or random.random() < 0.02:
        return random.choice(VALUES)
    # by depth, else the thousand entries of a vocabulary would hide the rest
    names = sorted({str(key) for _, key in places})
    name = random.choice(names)
    holder, key = random.choice([place for place in places if str(place[1]) == name])
    kind = random.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[random.choice(("x", "", *map(str, holder)))] = random.choice(VALUES)
    elif kind == 2 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif kind == 3 and isinstance(holder[key], int | float):
        holder[key] = random.choice((-1, 0, 2, 1.5, 10**6)) * holder[key]
    elif kind == 4 and isinstance(holder[key], str):
        text = holder[key]
        at = random.randrange(len(text) + 1)
        holder[key] = text[:at] + random.choice(("", "\n", "{{", "%}", "é", "\x00", "/../", text)) + text[at + 1 :]
    elif kind == 5:
        other, name = random.choice(places)
        holder[key] = other[name] if other is not holder[key] else None
        return json.loads(json.dumps(document)) if _is_finite(document) else None
    else:
        holder[key] = random.choice(VALUES)
    return document


def _is_finite(document: Any) -> bool:
    """Whether no value holds itself."""
    try:
        json.dumps(document)
    except (ValueError, RecursionError):
        return False
    return True


def _walk(document: Any, places: list[tuple[Any, Any]]) -> None:
    if not isinstance(document, dict | list):
        return
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        places.append((document, key))
        if isinstance(value, dict | list):
            _walk(value, places)


def change_safetensors(data: bytes, random: Random) -> bytes:
    """The JSON head, with its length corrected or not; else bytes."""
    if random.random() < 0.3:
        return change_bytes(data, random)
    length = int.from_bytes(data[:8], "little")
    head = change_json(data[8 : 8 + length], random)
    said = len(head) if random.random() < 0.9 else random.choice(NUMBERS) % 2**64
    return said.to_bytes(8, "little") + head + data[8 + length :]


def change_file(path: Path, random: Random) -> None:
    """Change a file as its name says what it is."""
    kinds: dict[str, Callable[[bytes, Random], bytes]] = {".json": change_json, ".safetensors": change_safetensors}
    change = kinds.get(path.suffix, change_bytes)
    path.write_bytes(change(path.read_bytes(), random))
