"""The entry point: help, laziness, errors and exit codes, whatever the verb."""

import re
import subprocess
import sys

import click
import pytest

from selfspec import OptionError, __version__
from selfspec.cli import main
from selfspec.cli.main import VERBS, cli

HEAVY = ("torch", "numpy", "tokenizers", "transformers", "selfspec.engine", "selfspec.types")


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb(call, verb):
    """Guards help texts: a flag whose help cannot be made breaks the verb; examples must be commands."""
    result = call(verb, "--help")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert "--json" in result.stdout or verb == "serve"  # which prints no result
    examples = result.stdout.partition("Examples:")[2].strip().splitlines()
    assert len(examples) >= 2
    assert all("selfspec " in line for line in examples)
    assert call(verb, "-h").stdout == result.stdout


def test_the_group_shows_help_and_version(call):
    """Guards the first thing that anybody types."""
    for arguments in ([], ["--help"]):
        result = call(*arguments)
        assert result.exit_code == 0
        assert all(re.search(rf"^  {verb} +\S", result.stdout, re.MULTILINE) for verb in VERBS)
    assert call("--version").stdout == f"selfspec {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    ["--help", "--version", "drafters --help", "info --help", "estimate --help", "estimate --c 0 --alpha 0.5"],
)
def test_light_commands_import_nothing_heavy(arguments):
    """Guards the start: numpy alone takes longer than `--help` should, and torch takes seconds."""
    program = (
        "import sys; from selfspec.cli.main import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        f"finally: assert not [name for name in {HEAVY!r} if name in sys.modules], 'heavy'"
    )
    command = [sys.executable, "-c", program, *arguments.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("code", "most"),
    [
        ("import selfspec", 50),
        ("from selfspec.cli.main import cli; cli.main(['--help'])", 160),
    ],
    ids=["import", "help"],
)
def test_a_start_imports_few_modules(code, most):
    """Guards 0.3 s for `import selfspec` and 0.5 s for `selfspec --help`: 30 and 90 modules, some 0.3 ms each."""
    program = (
        f"import sys; before = set(sys.modules)\ntry: {code}\nexcept SystemExit: pass\n"
        f"more = set(sys.modules) - before; assert len(more) <= {most}, sorted(more)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_help_of_a_model_verb_needs_no_torch():
    """Guards `generate --help`, which imports the drafters for their options but no runtime."""
    program = (
        "import sys; from selfspec.cli.main import cli\n"
        "try: cli.main(['generate', '--help'])\n"
        "finally: assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frobnicate"], "no verb 'frobnicate'; it must be one of generate, batch,"),
        (["--frobnicate"], "No such option '--frobnicate'; see selfspec --help"),
        (["generate", "--frobnicate"], "see selfspec generate --help"),
        (["generate", "hello", "--gamma", "x"], "'x' is not a valid integer"),
        (["drafters", "--frobnicate"], "No such option"),
        (["info", "a", "b"], "unexpected extra argument"),
    ],
)
def test_usage_errors_are_one_line(refused, arguments, says):
    """Guards against click's three lines, and names the help that has the answer."""
    assert says in refused(*arguments)


def raising(monkeypatch, error):
    @click.command()
    def command():
        click.echo("before")
        raise error

    monkeypatch.setattr(main.Verbs, "get_command", lambda self, ctx, name: command)


def test_messages_of_many_lines_become_one(call, monkeypatch):
    """Guards the one line against text of the user inside a message."""
    raising(monkeypatch, OptionError("a\nb\r\n\tc\u2028d"))
    result = call("estimate")
    assert (result.exit_code, result.stderr) == (2, "selfspec: error: a b c d\n")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "selfspec: interrupted\n"),
        (click.Abort(), 130, "selfspec: interrupted\n"),
        (BrokenPipeError(), 141, ""),
        (OSError(28, "No space left on device"), 2, "selfspec: error: [Errno 28] No space left on device\n"),
    ],
)
def test_exit_codes(call, monkeypatch, error, code, line):
    """Guards what scripts look at, and that none of these shows a traceback."""
    monkeypatch.setattr(main, "_drop_output", lambda: None)
    raising(monkeypatch, error)
    result = call("estimate")
    assert (result.exit_code, result.stderr) == (code, line)


def test_our_own_bugs_are_not_hidden(call, monkeypatch):
    """Guards the traceback of an assertion: a bug reported as the user's mistake is never found."""
    raising(monkeypatch, AssertionError("a bug"))
    assert isinstance(call("estimate").exception, AssertionError)


def test_a_full_disk_is_one_line(spawn):
    """Guards the flush at the end: its error used to be a traceback of the interpreter's exit."""
    with open("/dev/full", "wb") as full:
        process = spawn("estimate", "--c", "0", "--alpha", "0.5", stdout=full)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.decode() == "selfspec: error: [Errno 28] No space left on device\n"


def test_a_terminal_without_greek_letters(spawn, monkeypatch):
    """Guards every line with α or γ: what cannot be shown becomes a question mark, not a traceback."""
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    output, errors = spawn("estimate", "--c", "0", "--alpha", "0.5").communicate(timeout=60)
    assert errors == b""
    assert output.decode("latin-1").startswith("draft             ? 0.5, ? 4")


def test_the_console_script_is_the_group():
    """Guards pyproject's entry point."""
    assert callable(main.run)
    assert isinstance(cli, click.Group)


def test_python_m_runs_the_command_line():
    """Guards installations whose scripts are not on the path."""
    command = [sys.executable, "-m", "selfspec", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"selfspec {__version__}\n"
