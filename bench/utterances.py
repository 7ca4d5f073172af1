"""A task of its own: what somebody says to a house, a calendar or a car, and the calls that it means, as JSON.

    python bench/utterances.py --out FOLDER [--train 1200] [--held-out 500] [--seed 0]

A grammar writes pairs such as

    wake me at half past six on weekdays and turn off the lights in the kitchen
    [{"call": "set_alarm", "time": "half past six", "repeat": "weekdays"}, {"call": "switch", "device": "lights",
      "room": "kitchen", "to": "off"}]

into train.jsonl and held-out.jsonl, one ``prompt`` and ``answer`` a line; no utterance is twice in either or in
both. Every fifth value of an open slot (names, titles, places, things to do) is in held-out utterances only, so a
model that learns the task must copy, not remember. The same seed writes the same files.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import NamedTuple

_SLOTS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
VALUES: dict[str, list[str]] = _SLOTS["open"]  # of every five values the last is held out
CHOICES: dict[str, list[str]] = _SLOTS["closed"]
# call -> what is said, with slots in braces; the arguments come in the order of the slots below
CALLS: dict[str, tuple[str, ...]] = {
    "set_alarm": (
        "wake me at {time}",
        "set an alarm for {time}",
        "set an alarm for {time} on {repeat}",
        "wake me at {time} on {repeat}",
        "i need to get up at {time} {day}",
    ),
    "set_timer": ("set a timer for {length}", "start a timer of {length}", "count down {length}"),
    "remind": (
        "remind me to {thing}",
        "remind me to {thing} at {time}",
        "remind me {day} to {thing}",
        "do not let me forget to {thing} at {time} {day}",
        "remind {person} to {thing} {day}",
    ),
    "send_message": (
        "tell {person} {text}",
        "text {person} that {text}",
        "send {person} a message saying {text}",
        "write to {person} {text}",
    ),
    "call": ("call {person}", "ring {person} at {time}", "start a call with {person}"),
    "play": (
        "play {song}",
        "play {song} by {artist}",
        "put on something by {artist}",
        "play {song} in the {room}",
        "i want to hear {artist} in the {room} at volume {volume}",
    ),
    "switch": (
        "turn {to} the {device}",
        "turn {to} the {device} in the {room}",
        "switch the {room} {device} {to}",
        "turn the {device} {to} at {time}",
    ),
    "set_heating": ("make it {degrees} degrees in the {room}", "heat the {room} to {degrees} degrees by {time}"),
    "weather": (
        "what is the weather in {city}",
        "will it rain in {city} {day}",
        "how warm is it in {city}",
        "do i need an umbrella in {city} {day}",
    ),
    "navigate": (
        "take me to {place}",
        "directions to {place} by {mode}",
        "how do i get to {place} from {place2}",
        "navigate to {place} and avoid tolls",
        "how long to {place} by {mode} at {time}",
    ),
    "book": ("book a table for {count} at {time}", "book a table for {count} {day} at {time}"),
    "add_to_list": (
        "add {item} to the shopping list",
        "we are out of {item}",
        "put {item} and {item2} on the list",
    ),
    "create_event": (
        "put lunch with {person} on {day} at {time}",
        "schedule a meeting with {person} and {person2} {day}",
        "new event {day} at {time} at {place}",
    ),
}
SLOTS = (
    "person", "person2", "thing", "text", "song", "artist", "item", "item2", "device", "to", "degrees", "city",
    "place", "place2", "mode", "count", "length", "time", "day", "repeat", "room", "volume",
)  # fmt: skip
NAMES = {"person2": "with", "place2": "from", "item2": "also"}
FLAGS = {"avoid tolls": ("avoid_tolls", True)}
JOINS = (" and ", " and then ", ", then ", " and also ")
OPENINGS = ("", "", "", "please ", "hey house ", "could you ", "now ")
CLOSINGS = ("", "", "", " please", " thanks")


class Pair(NamedTuple):
    """What is said, and the calls that it means, as JSON."""

    prompt: str
    answer: str


def pair(rng: random.Random, held_out: bool) -> Pair:
    """One or two commands; values that are held out come only with ``held_out``."""
    parts = [_command(rng, held_out) for _ in range(1 if rng.random() < 0.7 else 2)]
    said = rng.choice(JOINS).join(text for text, _ in parts)
    return Pair(f"{rng.choice(OPENINGS)}{said}{rng.choice(CLOSINGS)}", json.dumps([call for _, call in parts]))


def _command(rng: random.Random, held_out: bool) -> tuple[str, dict[str, object]]:
    name = rng.choice(sorted(CALLS))
    template = rng.choice(CALLS[name])
    filled = {slot: _value(rng, slot, held_out) for slot in SLOTS if f"{{{slot}}}" in template}
    call: dict[str, object] = {"call": name}
    call |= {NAMES.get(slot, slot): value for slot, value in filled.items()}
    call |= {key: value for words, (key, value) in FLAGS.items() if words in template}
    return template.format(**filled), call


def _value(rng: random.Random, slot: str, held_out: bool) -> str:
    kind = slot.rstrip("2")
    if kind in CHOICES:
        return rng.choice(CHOICES[kind])
    values = VALUES[kind]
    return rng.choice([value for place, value in enumerate(values) if held_out or place % 5 != 4])


def pairs(count: int, held_out: bool, seed: int, but: frozenset[str] = frozenset()) -> list[Pair]:
    """So many pairs with different utterances, none of them in ``but``."""
    rng, found = random.Random(f"{seed} {held_out}"), {}
    while len(found) < count:
        made = pair(rng, held_out)
        if made.prompt not in but:
            found.setdefault(made.prompt, made)
    return list(found.values())


def write(out: Path, train: int, held_out: int, seed: int) -> None:
    """Write both files into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    kept = pairs(held_out, True, seed)
    learned = pairs(train, False, seed, frozenset(one.prompt for one in kept))
    for name, found in (("train", learned), ("held-out", kept)):
        lines = (json.dumps(one._asdict()) for one in found)
        (out / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main() -> None:
    """Write the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", type=int, default=1200)
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    write(asked.out, asked.train, asked.held_out, asked.seed)


if __name__ == "__main__":
    main()
