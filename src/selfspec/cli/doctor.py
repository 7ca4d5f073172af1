"""``selfspec doctor``: what is here, and what keeps models from running or makes them slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.output import emit_json, examples, facts
from selfspec.measure.quantities import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_EXAMPLES = examples(
    "selfspec doctor",
    "selfspec doctor --json",
)


@click.command("doctor", epilog=_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the lines.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Look at this installation: versions, devices, threads, the runtime and why, caches, optional extras.

    The native core's self-test runs (50 ms). Nothing is written and no model is read. Exit code 0: models can run
    here, perhaps with warnings; 1: something has to be mended first.
    """
    from selfspec.doctor.facts import examine
    from selfspec.doctor.findings import Finding

    found = examine()
    if as_json:
        emit_json(found)
    else:
        click.echo(facts(list(_lines(found))))
        for finding in found["findings"]:
            click.echo(str(Finding(**finding)))
        click.echo("models can run here" if found["ok"] else "models cannot run here yet")
    ctx.exit(0 if found["ok"] else 1)


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    machine, runtime, cache = found["machine"], found["runtime"], found["cache"]
    yield "selfspec", f"{found['selfspec']} · Python {machine['python']} · {machine['platform']}"
    yield "processor", f"{machine['processor']} · {machine['cores']} of {machine['processors']} may be used"
    yield "runtime", f"{runtime['name'] or 'none'}: {runtime['why']}"
    yield "native core", _core(found["core"])
    yield "GPUs", ", ".join(found["devices"]["gpus"]) or "none"
    yield "packages", ", ".join(f"{name} {version or 'missing'}" for name, version in found["packages"].items())
    for name, extra in found["extras"].items():
        yield name if name == "other engines" else f"[{name}]", _extra(extra)
    yield (
        "cache",
        (
            f"{cache['folder']} · {cache['entries']} conversions, {size(cache['bytes'])} · {cache['tuned']} tuned"
            f"{'' if cache['writable'] else ' · cannot be written'}"
        ),
    )
    for name, model in found["models"].items():
        yield name, model["file"] if model["there"] else model["why"]
    yield "drafters", f"{found['drafters']['loaded']} installed"
    for name, value in found["environment"].items():
        yield name, value


def _core(core: Mapping[str, Any]) -> str:
    if not core["built"]:
        return "not built"
    parts = [f"self-test {core['self_test']}"]
    if "kernels" in core:
        threads = core["threads"]
        parts = [
            f"kernels {', '.join(core['kernels'])}",
            f"processor has {', '.join(core['features']) or 'no instruction set that matters'}",
            f"{threads} thread{'s' * (threads > 1)}",
            *parts,
        ]
    return " · ".join(parts)


def _extra(extra: Mapping[str, Any]) -> str:
    there = ", ".join(f"{name} {version}" for name, version in extra["packages"].items() if version)
    if extra["there"]:
        return there
    lacks = ", ".join(name for name, version in extra["packages"].items() if not version) or "a newer version"
    return f"lacks {lacks}: {extra['install']}"
