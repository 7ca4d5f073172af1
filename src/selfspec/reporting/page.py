"""From results to one HTML file that needs nothing else."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from selfspec.model.embedded import EMBEDDED
from selfspec.reporting import from_bench, from_others, from_profile
from selfspec.reporting.advice import advice_of
from selfspec.reporting.results import read_results
from selfspec.reporting.view import Missing, Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from selfspec.reporting.results import Kind, Result
    from selfspec.reporting.view import Section

_MAKERS: dict[Kind, Callable[[Result, str], Iterator[Section]]] = {
    "tune": from_others.tune_sections,
    "bench": from_bench.bench_sections,
    "profile": from_profile.profile_sections,
    "plan": from_others.plan_sections,
    "certify": from_others.certify_sections,
}
_MISSING: dict[Kind, tuple[str, str]] = {
    "bench": ("methods side by side, acceptance by position and task, who wrote each token", from_bench.COMMAND),
    "profile": ("S over exit layer and draft length, acceptance by layer, v(T)", from_profile.COMMAND),
    "tune": ("the best draft for this machine, on prompts that it was not chosen on", from_others.TUNE),
    "plan": ("what fits into a memory with every way to draft", from_others.PLAN),
    "certify": ("proof that drafts change nothing", from_others.CERTIFY),
}
# what no HTML may hold: control characters, lone surrogates, non-characters
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def report(paths: Sequence[str]) -> tuple[Page, str]:
    """The page of the results in these files, and its HTML.

    Raises OptionError for what is no result, or not of one model, RuntimeMissingError where nothing can be drawn.
    """
    page = page_of(read_results(paths))
    return page, render(page)


def page_of(results: Sequence[Result]) -> Page:
    """What there is to be shown, and what is missing."""
    sections: list[Section] = []
    for number, result in enumerate(_in_order(results), 1):
        with result.whole():
            sections += _MAKERS[result.kind](result, f"r{number}")
            if result.kind == "tune" and not any(other.kind == "profile" for other in results):
                sections += from_profile.profile_sections(result, f"p{number}")
    with results[0].whole():
        return Page(
            f"selfspec report: {results[0].model}",
            advice_of(results),
            tuple(_facts(results)),
            tuple(sorted(sections, key=lambda section: section.is_long)),
            tuple(_missing(results)),
        )


def _in_order(results: Sequence[Result]) -> list[Result]:
    order = [*_MAKERS]
    return sorted(results, key=lambda result: order.index(result.kind))


def _facts(results: Sequence[Result]) -> Iterator[tuple[str, str]]:
    """What the results are of, and where they are from."""
    first = results[0]
    yield "model", first.model
    yield "precision", str(first.document["precision"])
    places = [str(result.document["runs_on"]) for result in results if "runs_on" in result.document]
    yield "runs on", places[0] if places else str(first.document["runtime"])
    for place in dict.fromkeys(_machine(result) for result in results if "machine" in result.document):
        yield "machine", place
    for result in results:
        yield result.kind, result.path


def _machine(result: Result) -> str:
    with result.whole():
        machine = result.document["machine"]
        return f"{machine['processor']}, {machine['cores']} cores"


def _missing(results: Sequence[Result]) -> Iterator[Missing]:
    """What no file has, and the command that makes it."""
    there = {result.kind for result in results}
    plans = [str(result.document["model"]) for result in results if result.kind == "plan"]
    model = plans[0] if plans else results[0].model  # a plan says where it lies
    named = "" if model == EMBEDDED else f" --model {shlex.quote(model)}"
    for kind, (what, command) in _MISSING.items():
        if kind not in there and not (kind == "profile" and "tune" in there):
            verb = command.split(" --")[0]
            where = f" {shlex.quote(model)}" if named and kind == "plan" else named
            yield Missing(what, command.replace(verb, verb + where, 1))
    for result in results:
        if result.kind == "bench" and not result.document.get("samples"):
            yield Missing(f"who wrote each token ({result.path!r} is of an older version)", from_bench.COMMAND)
        if result.kind == "profile" and not result.document["points"]:
            yield Missing(
                f"S, α and c ({result.path!r} ran out of its budget)", "the same selfspec profile command"
            )


def _breakable(text: str) -> Markup:
    """Names of drafters may break where their parts do."""
    return Markup(re.sub(r"([:=,_/])", r"\1<wbr>", str(escape(text))))  # noqa: S704 (it is escaped)


def render(page: Page) -> str:
    """HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined)
    made.trim_blocks = made.lstrip_blocks = True
    made.filters["breakable"] = _breakable
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", made.get_template("page.html").render(page=page))
