"""`selfspec tune` beside an exhaustive grid: whether its choice is as good, and what share of the time it takes.

    python bench/tune_grid.py --out grid.json                  # the embedded model as shipped; an hour, run alone
    python bench/tune_grid.py --bits 16 --budget 3m --out grid16.json
    python bench/tune_grid.py --quick                          # a look at the script: decides nothing

1. The search, with its budget, on the prompts to tune on.
2. The grid: every setting below, `--pairs` pairs each with plain decoding beside it, on the same prompts.
3. The verdict: the search's choice against the grid's best, alternating, on the held-out prompts. It is met where
   the choice ÷ best is above 0.97 by the interval rule (docs/benchmarking.md), and the search took below a tenth.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path

import selfspec
from selfspec.documents import json_line, replace_file
from selfspec.errors import SelfspecError
from selfspec.machine import machine
from selfspec.measure.contenders import made, spelled
from selfspec.measure.identity import identity_of
from selfspec.measure.ours import BASELINE
from selfspec.measure.pairs import paired_ratio
from selfspec.measure.race import Track, ratio_of, speeds
from selfspec.measure.settings import TuneOptions
from selfspec.measure.tasks import choose, read_prompts
from selfspec.measure.tuner import Tuner, Workload
from selfspec.measure.tuning import FREE, document_of

NEAR, SHARE = 0.97, 0.1
GROUP = 6  # settings that run beside one plain answer


def grid(engine):
    """Every setting, as --draft takes it."""
    layers = engine.config.num_layers
    exits = sorted({max(1, layers * eighths // 8) for eighths in range(1, 8)} | {layers - 2, layers - 1})
    found = [
        spelled("suffix", {"gamma": g, "min_match": m}) for g, m in product((1, 2, 3, 5, 7, 10, 15), (1, 2, 3))
    ]
    found += [spelled("ngram", {"gamma": g, "min_ngram": m}) for g, m in product((1, 2, 3, 5, 7, 10, 15), (1, 2))]
    found += [
        spelled("early_exit", {"exit_layer": k, "gamma": g, "confidence": c})
        for k, g, c in product(exits, (1, 2, 4, 7), (0.0, 0.5, 0.8))
    ]
    found += [f"suffix>early_exit:exit_layer={k}:gamma={g}" for k, g in product(exits[::2], (2, 4))]
    found += [spelled("layer_skip", {"gamma": g}) for g in (1, 2, 4)]
    return [*found, "auto", "auto:candidates=(suffix)", "auto:candidates=(ngram)"]


def searched(engine, workload, options):
    """The search from nothing: its document, and the seconds that it took."""
    began = time.perf_counter()
    tuner = Tuner(engine, workload, options, {})
    for stage in tuner.stages():
        for _ in stage.run():
            pass
    document = document_of(tuner, identity_of(engine, options, FREE), time.perf_counter() - began)
    return document, document["seconds"]


def measured(engine, workload, options, drafts, pairs):
    """S of every setting that this model can have, by name, and the seconds that it took."""
    began, found = time.perf_counter(), {}
    for start in range(0, len(drafts), GROUP):
        group = []
        for draft in drafts[start : start + GROUP]:
            try:
                made(draft, engine)
                group.append(draft)
            except SelfspecError as error:
                print(f"{draft} is left out: {error}", flush=True)
        track = Track(engine, workload.tuning, options, {})
        for lap, _ in enumerate(track.run("grid", group, float("inf"), pairs), start=1):
            if lap == pairs:
                break
        ratios = {draft: ratio_of(list(track.laps.values()), draft, options.seed) for draft in group}
        for draft, ratio in ratios.items():
            found[draft] = asdict(ratio) if ratio else None
            print(f"{draft:60} {ratio.median if ratio else float('nan'):.3f}", flush=True)
    return found, time.perf_counter() - began


def compared(engine, workload, options, choice, best, pairs):
    """The choice ÷ the grid's best on held-out prompts, in alternation."""
    track = Track(engine, workload.held, options, {})
    drafts = list(dict.fromkeys([choice, best]))
    for lap, _ in enumerate(track.run("final", drafts, float("inf"), pairs), start=1):
        if lap == pairs:
            break
    laps = list(track.laps.values())
    own, other = speeds(laps, choice), speeds(laps, best)
    return paired_ratio([(b, c) for (_, c), (_, b) in zip(own, other, strict=True)], options.seed)


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--bits", type=int)
    parser.add_argument("--data")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=14)
    parser.add_argument("--quick", action="store_true", help="a dozen settings, few tokens")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    placed = {} if asked.bits is None else {"bits": asked.bits}
    engine = selfspec.load(asked.model, tuned=False, **placed)
    options = TuneOptions(
        data=asked.data,
        limit=asked.limit or (1 if asked.quick else None),
        budget=asked.budget,
        max_new_tokens=16 if asked.quick else asked.max_new_tokens,
    )
    prompts = choose(read_prompts(asked.data), (), options.limit)
    workload = Workload.of(engine, prompts, options)
    drafts, pairs = grid(engine), 7 if asked.quick else asked.pairs
    if asked.quick:
        drafts = drafts[::14]
    document, tune_seconds = searched(engine, workload, options)
    choice = document["choice"]["draft"]
    print(f"{document['recommendation']} ({tune_seconds:.0f} s)", flush=True)
    ratios, grid_seconds = measured(engine, workload, options, drafts, pairs)
    # plain decoding is a setting too: S is 1 by definition
    gains = {draft: ratio["median"] for draft, ratio in ratios.items() if ratio} | {BASELINE: 1.0}
    best = max(gains, key=gains.__getitem__)
    ratio = compared(engine, workload, options, choice, best, 2 * pairs)
    verdict = (
        "met" if ratio.verdict(NEAR) == "faster" else "missed" if ratio.verdict(NEAR) == "slower" else "undecided"
    )
    if choice == best:
        verdict = "met: the same draft"
    found = {
        "model": engine.name,
        "precision": engine.runtime.precision,
        "machine": machine(),
        "options": asdict(options) | {"pairs": pairs, "is_quick": asked.quick},
        "choice": choice,
        "best": best,
        "choice_over_best": asdict(ratio) | {"verdict": verdict},
        "tune_seconds": tune_seconds,
        "grid_seconds": grid_seconds,
        "share": tune_seconds / grid_seconds,
        "grid": ratios,
        "tune": document,
    }
    print(f"grid: {len(ratios)} settings, {grid_seconds:.0f} s; best {best}, S {gains[best]:.3f}")
    print(f"choice ÷ best {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] in {ratio.pairs} pairs: {verdict}")
    print(f"time {found['share']:.3f} of the grid's: {'met' if found['share'] < SHARE else 'missed'}")
    if asked.out:
        replace_file(asked.out, json_line(found) + "\n")


if __name__ == "__main__":
    main()
