"""A server under load: throughput and time per token with speculation on, off and chosen by itself.

    python bench/load.py --out load.json [--clients 1,2,4,8] [--on suffix] [--pairs 7] [-- --threads 2 --bits 8]

Starts `selfspec serve` (what follows ``--`` are its flags), or asks the server at ``--url``. So many clients at
once send one request after the other over HTTP and read the streams. The three ways take turns in an order that
changes, with the same prompts, so that what the machine does meanwhile strikes all of them; of a pair of ways the
ratio counts, by the rule of docs/benchmarking.md. Answers are greedy, so all ways must give the same texts.
Throughput is new tokens of all clients ÷ wall time. Time per token (TPOT) is of one answer: from its first chunk to
its last one ÷ the tokens after the first. Writes JSON, prints a table; the exit code is 1 where texts differ, or
`auto` is found slower than one of the others.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from selfspec.measure.pairs import paired_ratio
from selfspec.measure.tasks import read_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WAYS = ("off", "on", "auto")
COMPARED = (("off", "on"), ("off", "auto"), ("on", "auto"))  # the second over the first


@dataclass(frozen=True)
class Answer:
    """One stream as its client saw it."""

    text: str
    tokens: int
    seconds_per_token: float | None


@dataclass(frozen=True)
class Load:
    """So many clients at once, one way."""

    answers: list[Answer]
    seconds: float

    @property
    def throughput(self) -> float:
        """New tokens per second of all clients."""
        return sum(answer.tokens for answer in self.answers) / self.seconds

    def tpot(self, percent: float) -> float:
        """A percentile of the seconds per token of the answers."""
        return float(np.percentile([a.seconds_per_token for a in self.answers if a.seconds_per_token], percent))


def ask(url: str, prompt: str, tokens: int, drafting: dict[str, Any]) -> Answer:
    """Send one request, and read its stream to the end."""
    where = urlsplit(url)
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculative": drafting,
    }
    text, times, usage = "", [], None
    with closing(http.client.HTTPConnection(where.hostname or "", where.port, timeout=600)) as connection:
        connection.request(
            "POST",
            f"{where.path}/chat/completions",
            json.dumps(body),
            {"content-type": "application/json"},
        )
        response = connection.getresponse()
        assert response.status == 200, response.read()
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                if "role" not in choice["delta"]:
                    times.append(time.perf_counter())
    assert usage is not None, "the stream ended early"
    written = usage["completion_tokens"]
    return Answer(text, written, (times[-1] - times[0]) / (written - 1) if written > 1 else None)


def run(url: str, prompts: Sequence[Sequence[str]], tokens: int, drafting: dict[str, Any]) -> Load:
    """One client for each list of prompts, all at once."""

    def client(own: Sequence[str]) -> list[Answer]:
        return [ask(url, prompt, tokens, drafting) for prompt in own]

    started = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = [answer for found in pool.map(client, prompts) for answer in found]
    return Load(answers, time.perf_counter() - started)


@contextmanager
def server(flags: Sequence[str], slots: int) -> Iterator[str]:
    """A server of our own, which ends with the block."""
    command = [sys.executable, "-m", "selfspec", "serve", "--port", "0", "--slots", str(slots), *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 (ourselves)
        assert process.stderr
        lines = iter(process.stderr.readline, "")
        try:
            announced = next((line for line in lines if " at http://" in line), None)
            if announced is None:
                sys.exit("the server did not start")
            yield announced.rsplit(" at ", 1)[1].strip()
        finally:
            process.send_signal(signal.SIGINT)


def measured(url: str, clients: int, args: argparse.Namespace, rng: random.Random) -> dict[str, Any]:
    """All pairs with so many clients."""
    texts = [prompt.turns[0] for prompt in read_prompts(args.prompts)]
    ways: dict[str, dict[str, Any]] = {
        "off": {"enabled": False},
        "on": {"draft": args.on, **json.loads(args.options)},
        "auto": {"draft": "auto"},
    }
    loads: dict[str, list[Load]] = {way: [] for way in WAYS}
    differing = 0
    for pair in range(-1, args.pairs):  # the first one warms up
        prompts = [rng.sample(texts, args.requests) for _ in range(clients)]
        order = WAYS[pair % 3 :] + WAYS[: pair % 3]
        found = {way: run(url, prompts, args.max_new_tokens, ways[way]) for way in order}
        texts_of = [[answer.text for answer in found[way].answers] for way in WAYS]
        differing += sum(len(set(same)) > 1 for same in zip(*texts_of, strict=True))
        if pair >= 0:
            for way, load in found.items():
                loads[way].append(load)
    return summary(clients, loads, differing)


def summary(clients: int, loads: dict[str, list[Load]], differing: int) -> dict[str, Any]:
    """Medians of each way, and the ratios of pairs of them: above 1 the second is faster."""
    measures = {
        "throughput": lambda load: load.throughput,
        "tpot_p50": lambda load: 1 / load.tpot(50),
        "tpot_p95": lambda load: 1 / load.tpot(95),
    }
    ratios = {}
    for first, second in COMPARED:
        for name, of in measures.items():
            ratio = paired_ratio([(of(a), of(b)) for a, b in zip(loads[first], loads[second], strict=True)])
            ratios[f"{second}/{first} {name}"] = {
                "median": ratio.median,
                "low": ratio.low,
                "high": ratio.high,
                "verdict": ratio.verdict(),
            }
    return {
        "clients": clients,
        "differing_texts": differing,
        "ways": {
            way: {
                "tokens_per_second": float(np.median([load.throughput for load in found])),
                "tpot_p50_seconds": float(np.median([load.tpot(50) for load in found])),
                "tpot_p95_seconds": float(np.median([load.tpot(95) for load in found])),
            }
            for way, found in loads.items()
        },
        "ratios": ratios,
    }


def cell(ratio: dict[str, Any]) -> str:
    """A ratio with its interval, and its verdict where there is one."""
    verdict = "" if ratio["verdict"] == "undecided" else f" {ratio['verdict']}"
    return f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]{verdict}"


def table(found: Sequence[dict[str, Any]]) -> str:
    """The ratios, clients by way and measure, in Markdown."""
    names = list(found[0]["ratios"])
    lines = [f"| clients | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}"]
    for entry in found:
        lines.append(f"| {entry['clients']} | {' | '.join(map(cell, entry['ratios'].values()))} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write, print, and end with the code that says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--url", help="a server that runs already, such as http://localhost:8000/v1")
    parser.add_argument("--clients", default="1,2,4,8")
    parser.add_argument("--on", default="suffix", help="the drafter of `on`")
    parser.add_argument("--options", default="{}", help="its options, as JSON")
    parser.add_argument("--prompts", help="JSON lines with turns or prompt; by default the built-in ones")
    parser.add_argument("--requests", type=int, default=2, help="of each client in a run")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=7, help="fewer than 7 decide nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("flags", nargs="*", help="flags of `selfspec serve`, after --")
    args = parser.parse_args()
    counts = [int(count) for count in args.clients.split(",")]
    rng = random.Random(args.seed)
    found = []

    def measure(url: str) -> None:
        for clients in counts:
            found.append(measured(url, clients, args, rng))
            print(json.dumps(found[-1]), flush=True)

    if args.url:
        measure(args.url)
    else:
        with server(args.flags, max(counts)) as url:
            measure(url)
    if args.out:
        options = {name: value for name, value in vars(args).items() if name != "out"}
        args.out.write_text(json.dumps({"options": options, "loads": found}, indent=2) + "\n", encoding="utf-8")
    print(table(found))
    slower = any(
        entry["ratios"][f"auto/{other} throughput"]["verdict"] == "slower"
        for entry in found
        for other in ("off", "on")
    )
    sys.exit(1 if slower or any(entry["differing_texts"] for entry in found) else 0)


if __name__ == "__main__":
    main()
