"""The entry point: verbs that are imported when called, and one place that turns errors into exit codes.

Exit codes: 0 done · 1 done, but lines of a batch failed or `certify` found a bug · 2 the user's mistake (one line
on stderr) · 130 Ctrl-C · 141 the reader of the pipe left.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from selfspec._version import __version__
from selfspec.cli.lazy import Lazy
from selfspec.cli.output import examples
from selfspec.errors import SelfspecError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141  # what a program that SIGPIPE ended reports

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# verb -> its line in `selfspec --help`; the module selfspec.cli.<verb> has its `command`
VERBS = {
    "generate": "Answer one prompt, and say how it was drafted.",
    "batch": "Answer a file of prompts, several at a time, and resume where a run ended.",
    "chat": "Talk with a model; the cache stays between turns.",
    "serve": "Answer OpenAI's clients, many at once.",
    "drafters": "List the drafters that are installed, with their options.",
    "info": "Sizes of a model, and what a draft would cost with it.",
    "certify": "Prove on your own model that drafts change nothing.",
    "bench": "How fast drafters and other programs are, task by task.",
    "profile": "What exits, passes and drafts cost here, and the speedups they promise.",
    "tune": "Find the draft that is fastest here, on your prompts, and keep it for this model.",
    "search-plan": "Which layers a draft of the same model should leave out, here.",
    "bundle": "A model and all that runs it in one folder, for boxes without a network.",
    "export": "A part of a model as a draft model of other engines.",
    "train": "Data of the model's own answers, and small heads that draft better for it.",
    "plan": "What fits into a memory, with which draft, and whether to speculate.",
    "report": "Results of the other verbs as one page, with a recommendation.",
    "estimate": "What a draft is worth, from its acceptance rate and cost.",
    "doctor": "What is installed here, which runtime runs, and what does not go together.",
    "simulate": "What drafting ahead would give on devices that are not here.",
}


class Verbs(Lazy):
    """The group of all verbs, which ends the process with a documented exit code."""

    verbs = VERBS

    def main(  # type: ignore[override]  # click's has four overloads for what is not used here
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command line and exit."""
        arguments = sys.argv[1:] if args is None else list(args)
        sys.exit(self._exit_code(arguments, prog_name or "selfspec", extra))

    def _exit_code(self, args: list[str], prog_name: str, extra: dict[str, Any]) -> int:
        try:
            try:
                return self._run(args, prog_name, extra)
            except (KeyboardInterrupt, click.Abort):
                _complain("interrupted")
                return EXIT_INTERRUPTED
            except (SelfspecError, click.ClickException) as error:
                _complain(f"error: {_message(error)}")
                return EXIT_ERROR
        except BrokenPipeError:
            _drop_output()
            return EXIT_PIPE_CLOSED
        except OSError as error:  # a full disk behind stdout, say
            _drop_output()
            with suppress(OSError):
                _complain(f"error: {error}")
            return EXIT_ERROR

    def _run(self, args: list[str], prog_name: str, extra: dict[str, Any]) -> int:
        try:
            with self.make_context(prog_name, args, **extra) as ctx:
                self.invoke(ctx)
        except click.exceptions.Exit as end:
            return end.exit_code
        finally:
            _flush()
        return 0


def _message(error: SelfspecError | click.ClickException) -> str:
    """One sentence; click's errors get the command whose help has the answer."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{error.format_message().rstrip('.')}; see {error.ctx.command_path} --help"
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


def _complain(message: str) -> None:
    """Write one line to stderr, whatever the message holds."""
    click.echo(f"selfspec: {' '.join(message.split())}", err=True)


def _flush() -> None:
    if sys.stdout is not None:  # closed by the caller: `>&-`
        sys.stdout.flush()


def _drop_output() -> None:
    """Send what is still buffered nowhere, or the interpreter complains when it flushes at its end."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())


_EXAMPLES = examples(
    'selfspec generate "Name three primary colours." --draft early_exit --gamma 2',
    'selfspec generate "Name three primary colours." --show-drafts',
    "selfspec estimate --layers 32 --exit 8 --alpha 0.7",
    "selfspec COMMAND --help",
)


@click.group("selfspec", cls=Verbs, invoke_without_command=True, context_settings=_SETTINGS, epilog=_EXAMPLES)
@click.version_option(__version__, prog_name="selfspec", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Lossless self-speculative decoding: one model drafts and verifies, and says the same words sooner."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run() -> None:
    """The ``selfspec`` command."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")  # a terminal that cannot show γ still gets its answer
    cli.main()


if __name__ == "__main__":
    run()
