"""Zero tolerance, over thousands of tokens: same tokens and same logits, bit for bit, however a text is made.

    python bench/exactness.py --data bench.jsonl --out exactness --tokens 10000

For each precision of the native core, the prompts of all tasks are answered by plain decoding, greedily and with
coupled sampling. Then they are answered again: by every drafter, four at a time, on one and two threads, and with
the prompt in chunks of other sizes. Every token must be the same, and so must every bit of the logits that it was
chosen from; what is kept of them is a 64-bit digest per token.

Prompts are taken from the tasks in turn until plain decoding has said ``--tokens`` tokens. Results are appended
to a file per precision in ``--out``; a second call goes on where the first one stopped. Exit code 1 if anything
differed.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from functools import cache, partial
from hashlib import blake2b
from itertools import product, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import selfspec
from selfspec.context import PREFILL_ROWS, Context, Text
from selfspec.decode import Loop
from selfspec.drafters.trained import shipped_for
from selfspec.measure.tasks import encode_turns, read_prompts
from selfspec.measure.trial import PLAIN, Candidate
from selfspec.model.embedded import EMBEDDED
from selfspec.sampling import Chance
from selfspec.types import Array, Draft, Sampling, Verdict, on_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from selfspec.rounds import Commit
    from selfspec.runtime.base import Runtime

SEED = 11
LAWS = {"greedy": Sampling(), "coupled T 0.8": Sampling(0.8, coupled=True)}


class Way(NamedTuple):
    """How the texts are made."""

    drafting: str
    candidate: Candidate = PLAIN
    together: int = 1
    threads: int | None = None
    chunk: int = PREFILL_ROWS

    @property
    def name(self) -> str:
        """The drafter, and what else differs from plain decoding of one text."""
        found = [self.drafting]
        if self.together > 1:
            found.append(f"{self.together} at a time")
        if self.threads:
            found.append(f"{self.threads} thread{'s' * (self.threads > 1)}")
        if self.chunk != PREFILL_ROWS:
            found.append(f"chunks of {self.chunk}")
        return ", ".join(found)


def ways(layers: int, fewer_bits: Sequence[int], has_head: bool = False) -> list[Way]:
    """All of them; the first is the one that the others are compared with.

    Batches, threads and chunks are spread over the drafters: whatever differs in any of them shows, and --ways
    tells afterwards which it was. ``has_head``: a trained head comes with the package for this model.
    """
    late, half = layers - layers // 8 - 1, layers // 2
    ngram = Candidate("ngram", {"gamma": 7})
    comb = Candidate("ngram", {"gamma": 4, "siblings": 2})
    half_way = Candidate("early_exit", {"exit_layer": half, "gamma": 4, "confidence": 0.4})
    nearly = Candidate("early_exit", {"exit_layer": late, "gamma": 2})
    bush = Candidate("early_exit", {"exit_layer": late, "gamma": 2, "siblings": 1})
    lower = [
        Way(f"quantized to {bits} bits", Candidate("quantized", {"draft_bits": bits}), together)
        for bits, together in zip(fewer_bits, (4, 1), strict=False)
    ]
    trained = [
        Way("eagle", Candidate("eagle", {"gamma": 4}), together=4, chunk=7),
        Way("eagle with siblings", Candidate("eagle", {"gamma": 2, "siblings": 1})),
        Way("suffix>eagle", Candidate("suffix>eagle", {}), together=4),
    ]
    return [
        Way("plain"),
        Way("plain", together=4, chunk=7),
        Way("ngram", ngram, together=4),
        Way("ngram with siblings", comb, together=4, chunk=64),
        Way(f"early exit {half} with stop", half_way, together=4),
        Way(f"early exit {late}", nearly, chunk=64),
        Way(f"early exit {late} with siblings", bush, together=4, threads=1),
        Way("suffix", Candidate("suffix", {}), chunk=1),
        Way("suffix", Candidate("suffix", {}), together=4, threads=2),
        Way("auto", Candidate("auto", {})),
        Way("layer skip", Candidate("layer_skip", {"gamma": 2}), together=4),
        *lower,
        *(trained if has_head else ()),
    ]


class Recorder(Context):
    """A `Context` that keeps a digest of the logits from which each token was chosen, text by text."""

    def __init__(self, runtime: Runtime, cache: Any, prefill_rows: int) -> None:
        super().__init__(runtime, cache, prefill_rows)
        self.digests: dict[int, list[str]] = {}
        self._rows: dict[Text, Array] = {}

    def prefill(self, text: Text) -> Array:
        """The logits [V] of the last row, kept."""
        logits = super().prefill(text)
        self._rows[text] = logits[None]
        return logits

    def score(self, texts: Sequence[Text], drafts: Sequence[Draft]) -> list[Array]:
        """The logits of all rows, kept."""
        found = super().score(texts, drafts)
        self._rows |= zip(texts, found, strict=True)
        return found

    def commit(self, text: Text, draft: Draft, verdict: Verdict) -> Commit:
        """Digests of the rows that the new tokens came from: the pending one's and the accepted ones'."""
        branch = range(verdict.accepted) if verdict.branch is None else verdict.branch
        commit, rows = super().commit(text, draft, verdict), on_host(self._rows.pop(text))
        from_rows = [0, *(node + 1 for node in branch)][: len(commit.tokens)]
        assert len(from_rows) == len(commit.tokens)
        self.digests.setdefault(text.index, []).extend(_digest(rows[row]) for row in from_rows)
        return commit


def _digest(row: Any) -> str:
    return blake2b(row.tobytes(), digest_size=8).hexdigest()


class Case:
    """One precision of the model, its prompts, and what is known of its texts already."""

    def __init__(
        self,
        opened: Callable[[int | None], selfspec.Engine],
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        path: Path,
    ) -> None:
        self._open = opened
        self._prompts, self._new, self._path = prompts, new_tokens, path
        self.known: dict[tuple[str, str, int], dict[str, Any]] = {}
        if path.exists():
            lines = (json.loads(line) for line in path.read_text().splitlines() if line.endswith("}"))
            self.known = {(line["law"], line["way"], line["prompt"]): line for line in lines}

    def enough(self, law: str, tokens: int) -> int:
        """How many prompts it takes for plain decoding to say so many tokens; makes the plain texts of them."""
        plain, said = Way("plain"), 0
        for count in range(1, len(self._prompts) + 1):
            for _ in self.run(law, plain, count):
                pass
            said += len(self.known[law, plain.name, count - 1]["tokens"])
            if said >= tokens:
                return count
        return len(self._prompts)

    def run(self, law: str, way: Way, count: int) -> Iterator[int]:
        """Make the texts of the first ``count`` prompts that are not known yet; gives the number of each done."""
        missing = [i for i in range(count) if (law, way.name, i) not in self.known]
        for start in range(0, len(missing), way.together):
            indices = missing[start : start + way.together]
            for line in self._written(indices, law, way):
                with self._path.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                self.known[law, way.name, line["prompt"]] = line
                yield line["prompt"]

    def _written(self, indices: Sequence[int], law: str, way: Way) -> list[dict[str, Any]]:
        engine = self._open(way.threads)  # None: on as many threads as the others
        runtime = engine.runtime
        limits = [len(self._prompts[i]) + self._new for i in indices]
        context = Recorder(runtime, runtime.new_cache(len(indices), max(limits)), way.chunk)
        ends = runtime.config.eos_token_ids.__contains__
        texts = [
            Text(i, slot, list(self._prompts[i]), limit, LAWS[law], Chance(SEED, i), ends)
            for slot, (i, limit) in enumerate(zip(indices, limits, strict=True))
        ]
        accepted = dict.fromkeys(indices, 0)
        drafter = way.candidate.make(engine)
        with closing(Loop(context)) as loop:
            loop.add(texts, drafter)
            while loop.texts:
                for commit in loop.turn().commits:
                    accepted[commit.sequence] += commit.accepted
        for text in texts:
            if text.error:
                raise text.error
        return [
            {
                "law": law,
                "way": way.name,
                "prompt": text.index,
                "tokens": text.tokens[text.prompt_length :],
                "digests": context.digests[text.index],
                "accepted": accepted[text.index],
            }
            for text in texts
        ]

    def compared(self, law: str, way: Way, count: int) -> dict[str, Any]:
        """Differing tokens and differing digests against plain decoding, and how much was compared."""
        tokens = digests = accepted = total = 0
        for i in range(count):
            ours, plain = (self.known[law, name, i] for name in (way.name, "plain"))
            pairs = (zip(ours[key], plain[key], strict=False) for key in ("tokens", "digests"))
            tokens_off, digests_off = (sum(a != b for a, b in pair) for pair in pairs)
            uneven = abs(len(ours["tokens"]) - len(plain["tokens"]))
            tokens, digests = tokens + tokens_off + uneven, digests + digests_off + uneven
            accepted, total = accepted + ours["accepted"], total + len(plain["tokens"])
        found = {
            "prompts": count,
            "tokens": total,
            "differing_tokens": tokens,
            "differing_logits": digests,
            "accepted": accepted,
        }
        return {"law": law, "way": way.name} | found


def in_turn(args: argparse.Namespace, engine: selfspec.Engine) -> list[list[int]]:
    """All prompts that fit, the tasks taking turns."""
    tasks: dict[str, list[list[int]]] = {}
    for prompt in read_prompts(args.data):
        assert engine.tokenizer is not None
        tokens = list(encode_turns(engine.tokenizer, [{"role": "user", "content": prompt.turns[0]}]))
        if len(tokens) + args.new_tokens <= engine.config.context_length:
            tasks.setdefault(prompt.task, []).append(tokens)
    return [tokens for turn in zip_longest(*tasks.values()) for tokens in turn if tokens is not None]


def _opened(args: argparse.Namespace, bits: int, threads: int | None) -> selfspec.Engine:
    return selfspec.load(args.model, runtime="cpu", bits=bits, draft="plain", threads=threads or args.threads)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, compare, and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--data", default=None, help="prompts; by default the built-in ones")
    parser.add_argument("--out", required=True, help="folder of the results so far")
    parser.add_argument("--bits", nargs="+", type=int, default=[16, 8, 4])
    parser.add_argument("--laws", nargs="+", choices=LAWS, default=list(LAWS))
    parser.add_argument("--tokens", type=int, default=10_000, help="of each way, law and precision")
    parser.add_argument("--new-tokens", type=int, default=160, help="of a text, at most")
    parser.add_argument("--threads", type=int, default=None, help="of the ways that do not name theirs")
    parser.add_argument("--ways", nargs="+", default=None, help="only these, beside plain")
    args = parser.parse_args(argv)
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for law, bits in product(args.laws, args.bits):
        opened = cache(partial(_opened, args, bits))
        engine = opened(None)
        prompts = in_turn(args, engine)
        key = blake2b(json.dumps([prompts, args.new_tokens, engine.fingerprint]).encode(), digest_size=4)
        case = Case(opened, prompts, args.new_tokens, folder / f"{bits}-{key.hexdigest()}.jsonl")
        count = case.enough(law, args.tokens)
        has_head = shipped_for(engine.name, "eagle") is not None
        for way in ways(engine.config.num_layers, engine.runtime.fewer_bits, has_head):
            if args.ways and way.name not in ("plain", *args.ways):
                continue
            for done in case.run(law, way, count):
                print(f"\r{bits} bits, {law}, {way.name}: {done + 1}/{count}", end="", file=sys.stderr)
            results.append({"bits": bits} | case.compared(law, way, count))
            print(
                "\r{bits} bits, {law}, {way}: {tokens} tokens, {accepted} of them drafted; "
                "{differing_tokens} tokens and {differing_logits} logits differ".format(**results[-1]),
                flush=True,
            )
    print(json.dumps(results))
    if any(result["differing_tokens"] or result["differing_logits"] for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
