"""``selfspec drafters``: what can draft here, with which options."""

from __future__ import annotations

from typing import Any

import click

from selfspec.cli.output import emit_json, examples

_SAYS = ("summary", "paper", "pays")
_EXAMPLES = examples(
    "selfspec drafters",
    "selfspec drafters --json",
)


@click.command("drafters", epilog=_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the list.")
def command(as_json: bool) -> None:
    """List the installed drafters, with the options that each one has.

    Plug-ins bring drafters of their own (entry point group `selfspec.drafters`); one that cannot be
    loaded is listed with its error.
    """
    from selfspec.drafters import available

    entries = [_entry(name, entry.value) for name, entry in available().items()]
    if as_json:
        emit_json({"drafters": entries})
        return
    click.echo("\n\n".join(_block(entry) for entry in entries))


def _entry(name: str, source: str) -> dict[str, Any]:
    from selfspec.cli.flags import described, flag_name
    from selfspec.drafters import drafter_class
    from selfspec.errors import OptionError

    entry: dict[str, Any] = {"name": name, "source": source, "error": None, "options": []} | dict.fromkeys(_SAYS)
    try:
        drafter = drafter_class(name)
    except OptionError as error:
        return entry | {"error": " ".join(str(error).split())}
    options = [
        {
            "name": field.name,
            "flag": flag_name(field.name),
            "default": field.default,
            "help": field.metadata["help"],
        }
        for field in described(drafter.Options)
    ]
    return entry | {"options": options} | {name: getattr(drafter, name, "") for name in _SAYS}


def _block(entry: dict[str, Any]) -> str:
    if entry["error"]:
        return f"{entry['name']}: BROKEN: {entry['error']}"
    width = max((len(option["flag"]) for option in entry["options"]), default=0)
    lines = [
        f"  {option['flag'].ljust(width)}  {option['help']}{_shown(option['default'])}"
        for option in entry["options"]
    ]
    return "\n".join([f"{entry['name']}: {entry['summary']}", *lines])


def _shown(default: object) -> str:
    if default in (None, ()):
        return ""
    return f"  [{('on' if default else 'off') if isinstance(default, bool) else default}]"
