"""How far the skip sets that each method finds are from the best one, on the trained model of the tests.

    python bench/skip_sets.py [--texts 4] [--trials 160] [--json]

All 65,535 sets of its eight layers are known (tests/skip_truth.py): S by the cost model where a sub-layer costs
half a layer and the head as much, best γ up to 8, at temperature 1. Nothing is timed: it may run beside anything.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from selfspec import drafters
from selfspec.cli.output import table
from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.drafters.conflayers import ConfLayersOptions, LayerSearch
from selfspec.drafters.skip_search import candidates, fastest, layers_of, sub_layers_of
from selfspec.drafters.swift import SetSearch, SwiftOptions
from selfspec.engine import Engine
from selfspec.measure.plan_search import PlanSearch
from selfspec.measure.profile import Question
from selfspec.measure.settings import SearchOptions
from selfspec.sampling import Chance
from selfspec.types import LayerPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import skip_truth as st
import trained_decoder as trained


class Found(NamedTuple):
    """Plans of one method, the kind of draft it makes, and the best S there is under its own constraint."""

    method: str
    kind: str
    plans: list[Any]
    limit: str
    within: float


def searched(runtime: Any, truth: st.Truth, trials: int) -> list[Found]:
    """What each source of search-plan finds, and all together."""
    texts = st.answers(runtime)
    prompts = [Question(str(i), prompt) for i, prompt in enumerate(st.PROMPTS)]
    said = {str(i): tokens[len(st.PROMPTS[0]) :] for i, tokens in enumerate(texts)}
    units = {"costs": {"attention": 0.5, "mlp": 0.5, "rest": st.HEAD, "v": list(st.V)}, "answers": said}
    options = SearchOptions(gamma=st.GAMMA, max_new_tokens=st.NEW, temperature="1", trials=trials)
    search = PlanSearch(Engine(runtime, None, "trained", draft="plain"), prompts, options, units)
    list(search.prepare())
    best = truth.best().speedup
    found = []
    for name, (_, plans) in search.sources().items():
        tried = []
        for plan in plans:
            search.worth(plan)
            tried.append(plan)
        top = max(tried, key=lambda plan: truth.worth(plan).speedup)
        found.append(Found(f"search-plan, {name}", "drawn", [top], "any set", best))
    return found


def by_states(runtime: Any, truth: st.Truth) -> list[Found]:
    """CLaSp and KnapSpec at many places of the texts."""
    clasp: dict[int, list[Any]] = {2: [], 3: [], 4: []}
    knapsack = []
    for tokens in st.answers(runtime):
        for end in range(16, len(tokens), 4):
            context, text = st.opened(runtime, tokens[:end], len(st.PROMPTS[0]), room=256)
            found = candidates(context, text, np.asarray([end - 1]), layers_of(trained.LAYERS), max(clasp))
            for count, plans in clasp.items():
                plans.append(found[count].plan)
            units = sub_layers_of(runtime.config, end)
            most = sum(unit.weight for unit in units) // 2
            found = candidates(context, text, np.arange(end - 5, end), units, most, 0.5)
            knapsack.append(fastest(context, found, end, st.GAMMA).plan)
    rows = [
        Found(f"clasp, {count} layers", "drawn", plans, f"{count} layers", _best_of_layers(truth, count))
        for count, plans in clasp.items()
    ]
    best = max(truth.of_size(count)[0].speedup for count in range(1, len(st.INNER) // 2 + 1))
    return [*rows, Found("clasp, knapsack", "drawn", knapsack, "half of the inner sub-layers at most", best)]


def _best_of_layers(truth: st.Truth, count: int) -> float:
    """S of the best way to leave out ``count`` layers, the outer ones too, which add nothing."""
    outer = [(), (0,), (trained.LAYERS - 1,), (0, trained.LAYERS - 1)]
    inner = {k: [worth.plan.left_out for worth in truth.of_layers(k)] for k in range(count - 2, count + 1)}
    return max(
        truth.worth(LayerPlan.without(trained.LAYERS, [*out, *(s for s in st.OUTER if s.layer in more)])).speedup
        for more in outer
        for out in inner[count - len(more)]
    )


def while_writing(runtime: Any, truth: st.Truth, texts: int) -> list[Found]:
    """SWIFT and ConfLayers: what is left after some texts."""
    rows = []
    for ratio in (0.3, 0.45, 0.6):
        search = SetSearch(SwiftOptions(skip_ratio=ratio, enough=1.0), trained.LAYERS)
        _write(runtime, search, texts)
        count = len(search.plan.left_out)
        best = truth.of_size(count, "likeliest")[0].speedup
        label = f"swift, skip ratio {ratio}, {search.trials} trials"
        rows.append(Found(label, "likeliest", [search.plan], f"{count} sub-layers", best))
    options = ConfLayersOptions(window=50)
    search, plans = LayerSearch(options, trained.LAYERS), []
    for seed in range(texts):
        for context, text in _rounds(runtime, seed):
            if len(text.tokens) % 8 == 0 and len(text.tokens) > text.prompt_length + options.window:
                search.advance(context, text)
                plans.append(search.plan)
    counts = {len(plan.left_out) // 2 for plan in plans}
    best = max(truth.of_layers(count, "likeliest")[0].speedup for count in counts)
    rows.append(Found("conflayers, skip ratio 0.4", "likeliest", plans, "as many whole layers", best))
    return rows


def _rounds(runtime: Any, seed: int, tokens: int = 190) -> Iterator[tuple[Context, Text]]:
    """A text of the model, after each of its tokens."""
    prompt = [seed % trained.VOCAB, (2 * seed + 1) % trained.VOCAB, 3]
    text = Text(0, 0, prompt, tokens, st.SAMPLING, Chance(seed, 0), lambda _: False)
    context = Context(runtime, runtime.new_cache(1, 2 * tokens))
    for _ in decode(context, [text], drafters.create("plain", runtime.config, {})):
        yield context, text


def _write(runtime: Any, search: SetSearch, texts: int) -> None:
    for seed in range(texts):
        for context, text in _rounds(runtime, seed):
            if len(text.tokens) > text.prompt_length + 50 and not text.is_ended and search.due():
                search.advance(context, text)


def main() -> None:
    """Train, search and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=4, help="texts that swift and conflayers search along")
    parser.add_argument("--trials", type=int, default=160, help="plans that search-plan tries")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    runtime = trained.runtime(trained.trained()[0])
    truth = st.truth(runtime)
    found = [
        *searched(runtime, truth, arguments.trials),
        *by_states(runtime, truth),
        *while_writing(runtime, truth, arguments.texts),
    ]
    rows = []
    for method, kind, plans, limit, within in found:
        worths = [truth.worth(plan, kind) for plan in plans]
        gains = sorted(worth.speedup / within for worth in worths)
        alpha = statistics.median(worth.alpha for worth in worths)
        rows.append((method, len(plans), alpha, statistics.median(gains), gains[0], limit, within))
    names = ("method", "sets", "α", "S ÷ best, median", "least", "best of", "its S")
    if arguments.json:
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=1))
    else:
        print(f"best of all: S {truth.best().speedup:.3f}, {truth.best().plan}")
        shown = [tuple(f"{x:.3f}" if isinstance(x, float) else str(x) for x in row) for row in rows]
        print(table([names, *shown]))


if __name__ == "__main__":
    main()
