"""``selfspec bench``: drafters and rivals as columns, tasks as rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.bench_page import ceiling_lines, page, worse_lines
from selfspec.cli.flags import MeasuringCommand, asked_of
from selfspec.cli.opening import open_engine
from selfspec.cli.output import check_target, emit_json, examples, note, progress
from selfspec.documents import json_line, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.engine import Engine
    from selfspec.measure.bench import Benchmark
    from selfspec.measure.settings import BenchOptions
    from selfspec.measure.tasks import Prompt
    from selfspec.measure.timing import Column

EXIT_WORSE = 1

_EXAMPLES = examples(
    "selfspec bench --tasks qa,code --limit 2",
    "selfspec bench --drafts ngram:gamma=8,early_exit:exit_layer=26:gamma=2 --rivals transformers",
    "selfspec bench --data question.jsonl --repeats 7 --json --out today.json",
    "selfspec bench --baseline yesterday.json",
)


class _Command(MeasuringCommand):
    def measured_by(self) -> type[BenchOptions]:
        from selfspec.measure.settings import BenchOptions

        return BenchOptions


@click.command("bench", cls=_Command, epilog=_EXAMPLES)
@click.option(
    "--baseline", "before", metavar="FILE", help="Compare with an earlier document, and say what got slower."
)
@click.option("--out", metavar="FILE", help="Write the JSON document to a file too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document as the last line.")
@click.pass_context
def command(ctx: click.Context, /, before: str | None, out: str | None, as_json: bool, **options: Any) -> None:
    """How fast drafters are, each against plain decoding on the same prompts in the same minute.

    Every prompt is answered by all columns, forwards and backwards in turn. S is the median over these pairs of
    tokens per second ÷ those of plain decoding, with its 90 % bootstrap interval; `?` marks what the pairs
    do not decide. Answers are compared in the same run.

    Exit code 1: a draft wrote another text than plain decoding, or something got slower than --baseline.
    """
    from selfspec.measure.baseline import changes, other_options, read_baseline, require_same

    plan = _Plan.of(options)
    earlier = read_baseline(before) if before else None
    if out:
        check_target(Path(out))
    engine = open_engine(plan.opening)
    head = plan.head(engine)
    if earlier:
        require_same(earlier, head)
        if other := other_options(earlier, head):
            note(f"the baseline was measured with other options: {', '.join(other)}")
    document, has_fault = _measured(plan, engine, head)
    click.echo(page(document))
    found = changes(earlier, document) if earlier else None
    if found is not None:
        click.echo("\n" + worse_lines(found))
    if out:
        write_whole(Path(out), json_line(document) + "\n")
    if as_json:
        emit_json(document)
    if has_fault or any(change.is_worse for change in found or ()):
        ctx.exit(EXIT_WORSE)


class _Plan:
    """What the flags ask for, checked as far as that goes without a model."""

    def __init__(self, bench: BenchOptions, opening: dict[str, Any]) -> None:
        from selfspec.measure import rivals, specs, tasks
        from selfspec.measure.ours import BASELINE

        self.bench, self.opening = bench, opening
        self.drafts = specs.draft_specs(bench.drafts, BASELINE)
        self.rivals = specs.parse_specs(bench.rivals)
        rivals.check_rivals(self.rivals)
        self.pythons = specs.pairs_of(bench.rival_python, "--rival-python", rivals.WORKER_NAMES)
        self.models = specs.pairs_of(bench.rival_model, "--rival-model", rivals.WORKER_NAMES)
        self.prompts = tasks.choose(tasks.read_prompts(bench.data), bench.task_names, bench.limit)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> _Plan:
        """Split the flags into those of the benchmark and those that open the model."""
        from selfspec.measure.settings import BenchOptions

        return cls(*asked_of(BenchOptions, options))

    def head(self, engine: Engine) -> dict[str, Any]:
        """The first part of the document: what is measured, where."""
        from selfspec._version import __version__
        from selfspec.machine import machine
        from selfspec.measure.ours import BASELINE

        return {
            "selfspec": __version__,
            "model": engine.name,
            "fingerprint": engine.fingerprint,
            "layers": engine.config.num_layers,
            "runtime": engine.runtime.name,
            "precision": engine.runtime.precision,
            "baseline": BASELINE,
            "machine": machine(),
            "options": vars(self.bench) | {"data": self.bench.data or "built-in"},
        }

    def columns(self, engine: Engine) -> list[Column]:
        """Our own. Raises OptionError for options that this model cannot have."""
        from selfspec.drafters import drafter_class
        from selfspec.measure.ours import DrafterColumn

        return [
            DrafterColumn(engine, spec.label, spec.name, spec.options(drafter_class(spec.name).Options))
            for spec in self.drafts
        ]


def _measured(plan: _Plan, engine: Engine, head: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The document, and whether a draft of ours changed a word."""
    from selfspec.measure.bench import Benchmark, context_needed, require_fit
    from selfspec.measure.passes import measure_ceiling
    from selfspec.measure.report import Report
    from selfspec.measure.rivals import Rivals, close_all
    from selfspec.runtime.cores import available_processors

    require_fit(engine, plan.prompts, plan.bench)
    columns = plan.columns(engine)
    threads = plan.opening.get("threads") or available_processors()
    context = context_needed(engine, plan.prompts, plan.bench)
    opener = Rivals(engine, plan.opening["model"], threads, context, plan.pythons, plan.models)
    columns += opener.open(plan.rivals)
    try:
        for name, why in opener.skipped.items():
            note(f"{name} is skipped: {why}")
        ceiling = measure_ceiling(engine.runtime)
        click.echo(ceiling_lines(ceiling) + "\n")
        bench = Benchmark(engine, columns, plan.bench)
        _run(bench, plan.prompts, plan.bench)
    finally:
        close_all(columns)
    bench.measured.failed |= opener.failed
    report = Report(bench.measured, columns, engine.runtime, plan.bench.seed)
    extra = {
        "skipped": opener.skipped,
        "ceiling": ceiling.to_dict() if ceiling else None,
        "has_peaks_per_run": bench.has_peaks_per_run,
    }
    return head | extra | report.document(), bool(report.faults)


def _run(bench: Benchmark, prompts: Sequence[Prompt], options: BenchOptions) -> None:
    from selfspec.measure.bench import num_matches

    with progress(num_matches(prompts, options), label="measuring") as step:
        for _ in bench.run(prompts):
            step(1)
