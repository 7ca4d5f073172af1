"""What `early_exit --learn` makes of a stream of prompts of one kind: utterances that become JSON.

    python bench/learn.py [--prompts 200] [--exit-layer 8] [--gamma 4] [--share 0.05] [--out learn.json]

The stream is answered three times by the same model, the whole stream each time: by early exit with a head that
learns (it begins as nothing), then by early exit with the head that the other one began with (frozen), and by plain
decoding. Texts must be equal, token for token; the exit code is 1 if one is not. α is shown for the first and the
last quarter of the stream; it holds on a busy machine, where the thread only has less time to learn.

    python bench/learn.py --cost [--pairs 7] [--prompts 40]

What learning takes from the engine: tokens per second with and without it, γ = 0 so that nothing else differs, in
pairs of processes. Run nothing beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import selfspec
from selfspec.flight import Flight
from selfspec.machine import machine
from selfspec.measure.pairs import paired_ratio
from selfspec.model.embedded import EMBEDDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.engine import Engine
    from selfspec.request import Completion

NAMES = "Anna Ben Carla David Elena Frank Grace Hugo Iris Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Victor"
CITIES = "Berlin Paris London Madrid Rome Vienna Oslo Dublin Lisbon Prague Tokyo Boston Chicago Denver Toronto"
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
GENRES = "jazz rock blues pop techno folk soul reggae"
TASKS = (
    "buy milk",
    "call the dentist",
    "water the plants",
    "pay the rent",
    "feed the cat",
    "send the report",
    "clean the kitchen",
    "return the books",
    "renew the passport",
)
# what is said, and the slots in the order in which they are written
FORMS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "create_reminder",
        ("Remind me to {task} on {day} at {time}", "On {day} at {time} remind me to {task}"),
        ("task", "day", "time"),
    ),
    (
        "get_weather",
        ("What will the weather be like in {city} on {day}?", "Weather for {city}, {day}"),
        ("city", "day"),
    ),
    (
        "book_table",
        ("Book a table for {count} in {city} on {day} at {time}", "A table for {count} at {time} on {day}, {city}"),
        ("count", "city", "day", "time"),
    ),
    (
        "send_message",
        ("Send a message to {name}: {task}", "Tell {name} to {task}"),
        ("name", "task"),
    ),
    (
        "play_music",
        ("Play some {genre} at volume {count}", "I want to hear {genre}, volume {count}"),
        ("genre", "count"),
    ),
)


class Pair(NamedTuple):
    """An utterance, and what it means."""

    intent: str
    said: str
    meant: str


def pair(random: np.random.Generator) -> Pair:
    """One of the domain."""

    def one(values: Sequence[Any]) -> Any:
        return values[int(random.integers(len(values)))]

    intent, phrases, slots = one(FORMS)
    values = {
        "task": one(TASKS),
        "day": one(DAYS.split()),
        "time": f"{random.integers(1, 13)} {one(('am', 'pm'))}",
        "city": one(CITIES.split()),
        "name": one(NAMES.split()),
        "genre": one(GENRES.split()),
        "count": int(random.integers(2, 10)),
    }
    meant = {"intent": intent} | {slot: values[slot] for slot in slots}
    return Pair(intent, one(phrases).format(**values), json.dumps(meant))


def prompts(count: int, seed: int = 0) -> list[str]:
    """So many utterances, each after the same examples: one of every intent."""
    random = np.random.default_rng(seed)
    shown: dict[str, Pair] = {}
    while len(shown) < len(FORMS):
        found = pair(random)
        shown.setdefault(found.intent, found)
    lines = [f"Utterance: {found.said}\nJSON: {found.meant}\n" for found in shown.values()]
    head = "\n".join(["Turn each utterance into JSON.\n", *lines])
    return [f"{head}\nUtterance: {pair(random).said}\nJSON:" for _ in range(count)]


class Sums:
    """What one engine did, prompt by prompt: drafted and accepted tokens, rounds, tokens and seconds."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, float]] = []
        self.texts: list[tuple[int, ...]] = []

    def add(self, found: Completion) -> None:
        """Count a text."""
        stats = found.stats
        self.rows.append((stats.drafted, stats.accepted, stats.rounds, stats.tokens, stats.seconds))
        self.texts.append(found.token_ids)

    def over(self, part: slice) -> dict[str, float]:
        """The figures of a part of the stream."""
        drafted, accepted, rounds, tokens, seconds = (sum(column) for column in zip(*self.rows[part], strict=True))
        return {
            "alpha": accepted / drafted if drafted else 0.0,
            "tokens_per_round": tokens / rounds,
            "tokens_per_second": tokens / seconds,
        }


def engine_of(arguments: argparse.Namespace, name: str) -> Engine:
    """Who answers: "plain", "frozen" or "learning"."""
    names = ("threads", "bits", "runtime")
    placed = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if name == "plain":
        return selfspec.load(arguments.model, draft="plain", **placed)
    exit_ = {"draft": "early_exit", "exit_layer": arguments.exit_layer, "gamma": arguments.gamma}
    learning = {"learn": True, "learn_share": arguments.share, "learn_out": arguments.head}
    return selfspec.load(arguments.model, **exit_, **placed, **(learning if name == "learning" else {}))


def answered(arguments: argparse.Namespace, name: str) -> tuple[Sums, dict[str, Any]]:
    """The whole stream by one of them; its sums, and what was learned."""
    engine, sums = engine_of(arguments, name), Sums()
    flight = Flight(engine.runtime, 1, 512, keeps_prefixes=True)  # as a server: what prompts share runs once
    for number, prompt in enumerate(prompts(arguments.prompts, arguments.seed), start=1):
        sampling = {"temperature": arguments.temperature, "coupled": arguments.temperature > 0, "seed": number}
        flight.board(0, engine.prepare(prompt, chat=False, stop=["\n"], max_new_tokens=48, **sampling))
        (progress,) = flight.fill()
        while progress.end is None:
            (progress,) = flight.turn()
        if isinstance(progress.end, Exception):
            raise progress.end
        sums.add(progress.end)
        if number % 25 == 0 and not arguments.quiet:
            figures = sums.over(slice(-25, None))
            kept = "".join(f", {learner.facts()['kept']} heads kept" for learner in engine.learners)
            print(f"{name} {number}: α {figures['alpha']:.3f}{kept}", file=sys.stderr, flush=True)
    for learner in engine.learners:
        learner.close()
    return sums, next((learner.facts() for learner in engine.learners), {})


def compare(arguments: argparse.Namespace) -> bool:
    """Answer the stream three times and print what came of it; whether all texts are equal."""
    found, facts = {}, {}
    for name in ("learning", "frozen", "plain"):
        found[name], learned = answered(arguments, name)
        facts |= learned
    different = sum(len(set(texts)) > 1 for texts in zip(*(sums.texts for sums in found.values()), strict=True))
    quarter = max(1, arguments.prompts // 4)
    parts = {"first": slice(0, quarter), "last": slice(-quarter, None), "all": slice(None)}
    figures = {name: {part: sums.over(which) for part, which in parts.items()} for name, sums in found.items()}
    print(f"{arguments.prompts} prompts, exit layer {arguments.exit_layer}, γ {arguments.gamma}")
    print(f"| head | α, first {quarter} | α, last {quarter} | tokens/round, first | last |")
    print("|---|---|---|---|---|")
    for name in ("frozen", "learning"):
        cells = [f"{figures[name][part]['alpha']:.3f}" for part in ("first", "last")]
        cells += [f"{figures[name][part]['tokens_per_round']:.2f}" for part in ("first", "last")]
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"texts that differ from each other: {different} of {arguments.prompts}")
    print(f"learned: {json.dumps(facts)}")
    if arguments.out:
        document = {"options": vars(arguments), "machine": machine(), "results": figures, "learned": facts}
        Path(arguments.out).write_text(json.dumps(document | {"different": different}, indent=1), encoding="utf-8")
    return not different


def leg(arguments: argparse.Namespace) -> None:
    """Tokens per second of one process, the first prompts aside."""
    arguments.gamma, arguments.quiet = 0, True
    sums, _ = answered(arguments, arguments.leg)
    print(sums.over(slice(min(5, arguments.prompts // 2), None))["tokens_per_second"])


def cost(arguments: argparse.Namespace) -> None:
    """Pairs of processes, one without and one with learning."""
    pairs = []
    for number in range(arguments.pairs):
        speeds = {}
        for name in ("frozen", "learning") if number % 2 else ("learning", "frozen"):
            command = [sys.executable, *sys.argv, "--leg", name]
            done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 (this script)
            speeds[name] = float(done.stdout)
        pairs.append((speeds["frozen"], speeds["learning"]))
        print(f"without {speeds['frozen']:.1f} tok/s, with {speeds['learning']:.1f}", file=sys.stderr, flush=True)
    ratio = paired_ratio(pairs)
    print(f"with learning: {ratio.median:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}], {ratio.pairs} pairs")


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--exit-layer", type=int, default=8)
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.05, help="of a core that learning may take")
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="above 0: coupled sampling, so texts are equal"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--bits", type=int)
    parser.add_argument("--runtime")
    parser.add_argument("--head", help="keep the head in this file")
    parser.add_argument("--out", help="write all numbers to this file, JSON")
    parser.add_argument("--cost", action="store_true", help="what learning takes from the engine")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--leg", choices=("frozen", "learning"), help=argparse.SUPPRESS)
    parser.add_argument("--quiet", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Measure and print; exit code 1 where texts differ."""
    arguments = parsed()
    if arguments.leg:
        leg(arguments)
    elif arguments.cost:
        cost(arguments)
    elif not compare(arguments):
        sys.exit(1)


if __name__ == "__main__":
    main()
