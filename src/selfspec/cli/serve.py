"""``selfspec serve``: an OpenAI-compatible server."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import ModelCommand
from selfspec.cli.opening import open_engine
from selfspec.cli.output import examples, note
from selfspec.errors import OptionError, RuntimeMissingError
from selfspec.measure.quantities import bytes_of
from selfspec.server.settings import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from click.decorators import FC

    from selfspec.engine import Engine

KEY_VARIABLE = "SELFSPEC_API_KEY"
_EXTRA = {"starlette", "uvicorn", "pydantic", "prometheus_client"}

_EXAMPLES = examples(
    "selfspec serve",
    "selfspec serve ./my-llama --port 8080 --slots 4 --draft auto",
    "SELFSPEC_API_KEY=secret selfspec serve --host 0.0.0.0",
)


def _limit(name: str, kind: type, text: str) -> Callable[[FC], FC]:
    """A flag of `ServerOptions`, which has its default."""
    default = getattr(ServerOptions, name)
    return click.option(
        f"--{name.replace('_', '-')}", type=kind, default=default, help=f"{text}  [default: {default}]"
    )


@click.command("serve", cls=ModelCommand, epilog=_EXAMPLES)
@click.argument("named", metavar="[MODEL]", required=False)
@click.option("--host", default="127.0.0.1", help="Address to listen on.  [default: 127.0.0.1, this machine only]")
@click.option("--port", type=int, default=8000, help="Port; 0 takes a free one.  [default: 8000]")
@click.option("--name", metavar="TEXT", help="What clients call the model.  [default: its name]")
@_limit("slots", int, "Most texts at once.")
@_limit("queue", int, "Most texts that wait; more get status 429.")
@_limit("deadline", float, "Seconds a text may take; 0 is no limit.")
@_limit("grace", float, "Seconds to finish texts after SIGTERM or Ctrl-C.")
@_limit("max_body", int, "Most bytes of a request.")
@click.option(
    "--kv-budget", metavar="SIZE", help="Most memory for keys and values, such as 4GiB.  [default: no limit]"
)
@click.option("--no-prefix-cache", is_flag=True, help="Let no prompt go on from what an earlier text has left.")
@click.option(
    "--drafts",
    metavar="NAMES",
    help="Drafters a request may choose, with commas.  [default: those without weights]",
)
@click.option("--log-requests", is_flag=True, help="Write a line of JSON for every request to stderr.")
def command(
    named: str | None, host: str, port: int, drafts: str | None, log_requests: bool, **options: Any
) -> None:
    """Serve a model to OpenAI's clients: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics.

    Requests are answered together, each with its own drafter; the flags are for what a request does not say, where
    the temperature is 1, as with OpenAI. An API key is asked for where the variable SELFSPEC_API_KEY is set. See
    docs/serving.md for the fields.
    """
    from selfspec.model.embedded import EMBEDDED

    try:
        import selfspec.server.app  # noqa: F401 (looks whether the extra is installed)
        from selfspec.server.run import listen
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise RuntimeMissingError(
            f"{error.name} is missing; install the server with: pip install 'selfspec[serve]'"
        ) from error
    limits = {name: options.pop(name) for name in ("slots", "queue", "deadline", "grace", "max_body")}
    limits["prefix_cache"] = not options.pop("no_prefix_cache")
    if (budget := options.pop("kv_budget")) is not None:
        limits["kv_budget"] = bytes_of("kv-budget", budget)
    name = options.pop("name")
    _settings(name or "?", drafts, limits)  # a mistake is said before the model loads
    if named is not None:
        if options["model"] not in (EMBEDDED, named):
            raise OptionError(f"the model is {named!r} and --model {options['model']!r}; give one")
        options["model"] = named
    with closing(listen(host, port)) as bound:
        engine = open_engine(options)
        _serve(engine, _settings(name or engine.name, drafts, limits), host, bound, log_requests)


def _serve(engine: Engine, settings: ServerOptions, host: str, bound: socket, log_requests: bool) -> None:
    """Until a signal says to stop."""
    from selfspec.server.app import Service
    from selfspec.server.run import Server, is_loopback

    if not (settings.api_key or is_loopback(host)):
        note(f"anybody who reaches {host} may use this server; set {KEY_VARIABLE} to ask for a key")
    _log(log_requests)
    service = Service(engine, settings)
    shown = "localhost" if is_loopback(host) else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{bound.getsockname()[1]}/v1"
    try:
        Server(service, settings.grace, lambda: note(f"{settings.name} at {address}")).run(sockets=[bound])
    finally:
        service.close()


def _settings(name: str, drafts: str | None, limits: dict[str, Any]) -> ServerOptions:
    from selfspec.drafters import resolve

    allowed: dict[str, Any] = (
        {} if drafts is None else {"drafts": tuple(filter(None, map(str.strip, drafts.split(","))))}
    )
    for draft in allowed.get("drafts", ()):
        resolve(draft)
    key = os.environ.get(KEY_VARIABLE, "")
    if key != key.strip():
        raise OptionError(f"{KEY_VARIABLE} has spaces around it; leave them out")
    return ServerOptions(name=name, api_key=key, **allowed, **limits)


def _log(requests: bool) -> None:
    """What goes wrong, and perhaps a line for every request, on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    levels = {"selfspec.server": logging.INFO if requests else logging.WARNING, "uvicorn": logging.ERROR}
    for name, level in levels.items():
        log = logging.getLogger(name)
        log.addHandler(handler)
        log.setLevel(level)
        log.propagate = False
