"""α, c, τ and S of every draft that needs no training, by the share of the model that it leaves out.

    python bench/skip_ratios.py [--model smollm2-135m] [--bits 16] [--ratios 0.1,0.2,0.3,0.45] [--json]

Run nothing beside it. All methods draft with one γ and one confidence stop, on the same prompts, in turn with plain
decoding (`selfspec.measure.timing`). `layer_skip` leaves out the sub-layers that turn the hidden state least along
plain decoding's first answer; `clasp --knapsack` chooses how much by itself. S is tokens per second after the first
token ÷ those of plain decoding, the searches of clasp, swift and conflayers included; c is what a drafted token
took ÷ a token of plain decoding, stopped steps and searches included; search is what searches took per round, in
tokens of plain decoding. What swift and conflayers learn stays from answer to answer; the warm-up is too short to
teach them, and answers no longer than ``--window`` are too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING, Any

import selfspec
from selfspec.cli.output import table
from selfspec.drafters.clasp import Clasp
from selfspec.drafters.conflayers import LayerSearch
from selfspec.drafters.layer_skip import skip_of
from selfspec.drafters.swift import SetSearch
from selfspec.errors import SelfspecError
from selfspec.measure.ours import BASELINE, DrafterColumn
from selfspec.measure.pairs import paired_ratio
from selfspec.measure.plan_search import Course
from selfspec.measure.profile import questions_of
from selfspec.measure.settings import Workload
from selfspec.measure.tasks import choose, read_prompts
from selfspec.measure.timing import Ask, Run, Stopwatch
from selfspec.rounds import Stats
from selfspec.types import LayerPlan, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.engine import Engine


class SearchClock:
    """How long the searches have taken: methods that run rows aside and choose a plan."""

    SEARCHES = ((Clasp, "_search"), (SetSearch, "advance"), (LayerSearch, "advance"))

    def __init__(self) -> None:
        self.seconds = 0.0
        for owner, name in self.SEARCHES:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, search: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(search)
        def timed(*given: Any) -> Any:
            began = time.perf_counter()
            try:
                return search(*given)
            finally:
                self.seconds += time.perf_counter() - began

        return timed

    def taken(self) -> float:
        """Seconds since this was asked last."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def methods(ratio: float, ranked: Sequence[Any], layers: int, window: int) -> dict[str, dict[str, Any]]:
    """Drafters that leave out this share of the model, with their options."""
    count = max(1, round(ratio * layers))
    skip = skip_of(LayerPlan.without(layers, ranked[: 2 * count]))
    return {
        "early_exit": {"exit_layer": layers - count},
        "layer_skip": {"skip": skip},
        "clasp": {"skips": count},
        "swift": {"skip_ratio": ratio, "window": window},
        "conflayers": {"skip_ratio": ratio, "window": window},
    }


def columns(
    engine: Engine, ratios: Sequence[float], ranked: Sequence[Any], options: argparse.Namespace
) -> list[Any]:
    """Plain decoding, then every method at every ratio."""
    layers = engine.config.num_layers
    shared = {"gamma": options.gamma, "confidence": options.confidence}
    made = [DrafterColumn(engine, BASELINE, BASELINE, {})]
    for ratio in ratios:
        for name, own in methods(ratio, ranked, layers, options.window).items():
            made.append(DrafterColumn(engine, f"{name} {ratio:g}", name, {**own, **shared}))
    made.append(DrafterColumn(engine, "clasp knapsack", "clasp", {"knapsack": True, **shared}))
    return made


def summed(runs: Sequence[Run]) -> Stats:
    """The counts of several answers."""
    total = Stats()
    for stats in (run.answer.stats for run in runs):
        assert stats is not None
        for name in ("texts", "tokens", "rounds", "drafted", "accepted"):
            setattr(total, name, getattr(total, name) + getattr(stats, name))
        for name in ("draft_row_layers", "verify_row_layers", "draft_seconds"):
            setattr(total, name, getattr(total, name) + getattr(stats, name))
    return total


def row(runs: Sequence[Run], plain: Sequence[Run], searched: float) -> dict[str, Any]:
    """What is printed of a column, beside the plain answers to the same questions; ``searched``: seconds."""
    stats = summed(runs)
    pairs = [
        (mine.tpot_seconds, theirs.tpot_seconds)
        for mine, theirs in zip(runs, plain, strict=True)
        if mine.tpot_seconds and theirs.tpot_seconds
    ]
    token = statistics.median(theirs for _, theirs in pairs)
    later = stats.tokens - stats.texts
    return {
        "alpha": stats.acceptance_rate,
        "c": stats.draft_seconds / stats.drafted / token if stats.drafted else None,
        "tau": stats.mean_accepted_length,
        "search_per_round": searched / stats.rounds / token,
        "speedup": asdict(paired_ratio(pairs)),
        "row_layers_per_token": (stats.draft_row_layers + stats.verify_row_layers) / later,
        "equal": sum(m.answer.tokens == p.answer.tokens for m, p in zip(runs, plain, strict=True)),
        "answers": len(runs),
    }


def measured(engine: Engine, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The row of every column."""
    work = Workload(data=options.data, limit=options.limit, max_new_tokens=options.max_new_tokens)
    prompts = choose(read_prompts(work.data), work.task_names, work.limit)
    questions = questions_of(engine, prompts, work)
    first = questions[0].prompt
    answer = engine.generate(first, draft="plain", max_new_tokens=work.max_new_tokens, ignore_eos=True).token_ids
    turns = Course(engine, first, answer, Sampling()).turns()
    made = columns(engine, options.ratios, sorted(turns, key=lambda step: -turns[step]), options)
    runs: dict[str, list[Run]] = {column.name: [] for column in made}
    watch, clock = Stopwatch(made), SearchClock()
    searched = dict.fromkeys(runs, 0.0)
    watch.warm_up(Ask(first, 8, ignore_eos=True))
    clock.taken()
    for _ in range(options.repeats):
        for question in questions:
            for column, run in watch.round(Ask(question.prompt, work.max_new_tokens, ignore_eos=True)):
                runs[column.name].append(run)
                searched[column.name] += clock.taken()
    return {name: row(found, runs[BASELINE], searched[name]) for name, found in runs.items()}


def _shown(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    ratio = found["speedup"]
    numbers = [found["alpha"], found["c"], found["tau"]]
    return (
        name,
        *("-" if number is None else f"{number:.2f}" for number in numbers),
        f"{found['search_per_round']:.2f}",
        f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        f"{found['row_layers_per_token']:.1f}",
        f"{found['equal']}/{found['answers']}",
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--bits", type=int, help="bits a weight in the native core")
    parser.add_argument("--data", help="JSON Lines of prompts; default: the built-in ones")
    parser.add_argument("--ratios", default="0.1,0.2,0.3,0.45", help="shares of the model to leave out")
    parser.add_argument("--gamma", type=int, default=6)
    parser.add_argument("--confidence", type=float, default=0.7)
    parser.add_argument("--window", type=int, default=50, help="of swift and conflayers")
    parser.add_argument("--limit", type=int, help="most prompts of each task")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=160)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.ratios = [float(ratio) for ratio in options.ratios.split(",")]
    placed = {} if options.bits is None else {"bits": options.bits}
    try:
        engine = selfspec.load(options.model, **placed)
        found = measured(engine, options)
    except SelfspecError as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps({"options": vars(options), "rows": found}, indent=1))
        return
    names = ("method, share left out", "α", "c", "τ", "search", "S [90 %]", "row-layers/token", "equal")
    print(table([names, *(_shown(name, row) for name, row in found.items())]))


if __name__ == "__main__":
    main()
