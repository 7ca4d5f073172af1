"""The examples run as they stand, on the embedded model or a tiny one; pages show the same lines."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from served import Running

import selfspec
from selfspec.cli.main import cli
from selfspec.drafters.base import Drafter
from selfspec.runtime.costs import PassCosts

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.filterwarnings("ignore:.*torch:UserWarning")


@pytest.fixture
def cheap_rows(monkeypatch):
    """Look-ups draft what is worth its row by the clock: a loaded machine must not decide what a test sees."""
    monkeypatch.setattr(PassCosts, "price", lambda costs, rows, texts=1: 0.1)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a script with arguments; gives what it prints."""

    def start(name, *args):
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return start


@pytest.mark.embedded
def test_the_quick_start_answers_in_fewer_passes(run, cheap_rows):
    """Guards the first program that anybody runs, on the embedded model, as printed."""
    *_, answer, counts = run("quick_start.py").splitlines()
    assert "Tagus" in answer
    rounds, plain = map(int, re.match(r"(\d+) passes in place of (\d+), α ", counts).groups())
    assert 0 < rounds < plain


@pytest.mark.embedded
def test_a_drafter_of_ones_own_drafts(run):
    """Guards `write a drafter in 30 lines`: some of what it drafts holds, and the text is plain decoding's."""
    accepted, drafted = map(int, re.findall(r"\d+", run("own_drafter.py"))[:2])
    assert 0 < accepted <= drafted


@pytest.mark.embedded
def test_the_program_of_the_spanish_page_runs(capsys):
    """Guards the one program that stands on a page alone, because its comments are in Spanish."""
    page = (ROOT / "docs" / "es" / "primeros-pasos.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(program.replace("max_new_tokens=48", "max_new_tokens=8"), {})
    assert re.search(r"\n\d+ (None|\d\.\d+)\n", capsys.readouterr().out)


def test_it_has_thirty_lines():
    """Guards the title: lines of code of both classes, without docstrings."""
    lines, classes = _code_of(EXAMPLES / "own_drafter.py")
    assert sum(len(lines & set(range(c.lineno - len(c.decorator_list), c.end_lineno + 1))) for c in classes) <= 30


def test_its_options_are_checked(tiny):
    """Guards what the page says of the dataclass: it is found by its class, and its options have types."""
    drafter = runpy.run_path(str(EXAMPLES / "own_drafter.py"))["Pairs"]
    assert issubclass(drafter, Drafter)
    with pytest.raises(selfspec.OptionError, match="least is 'two'"):
        selfspec.load(tiny, draft=drafter, least="two", threads=1)


def test_a_batch_job_answers_every_line(run, tiny, tmp_path):
    """Guards the job: one answer a line by its own name, an error for the wrong one only."""
    asked = [{"prompt": "hello", "id": "a"}, {"messages": [{"role": "user", "content": "ho"}]}, {"prompt": 7}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, asked)))
    run("batch_job.py", tmp_path / "in.jsonl", tmp_path / "out.jsonl", tiny)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {answer["id"]: "text" in answer for answer in found} == {"a": True, "1": True, "2": False}
    assert "token ids" in next(answer["error"] for answer in found if "error" in answer)


def test_the_client_is_answered(run, tiny):
    """Guards the server's example: a stream, a prediction and a schema through OpenAI's own client."""
    server = Running(selfspec.load(tiny, threads=1))
    try:
        said = run("openai_client.py", server.url)
    finally:
        server.stop()
    counts, answer = re.search(r"\n(\d+) tokens came from the prediction\n(.*)", said, re.DOTALL).groups()
    assert int(counts) >= 0
    assert json.loads(answer)["river"] in ("Tagus", "Douro")


def test_a_head_is_trained_and_drafts(tiny, tmp_path, monkeypatch):
    """Guards the commands of exit_head.sh, with a model of four layers and a run of one epoch."""
    (tmp_path / "prompts.txt").write_text("".join(f"say {n}\n" for n in range(12)))
    monkeypatch.chdir(tmp_path)
    values = {"MODEL": tiny, "PROMPTS": "prompts.txt", "LAYER": "2", "MINUTES": "0.01"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    script = (EXAMPLES / "exit_head.sh").read_text(encoding="utf-8")
    commands = [
        shlex.split(os.path.expandvars(line)) for line in script.splitlines() if line.startswith("selfspec ")
    ]
    small = {"data": ["--temperatures", "0", "--max-new-tokens", "8"], "exit-head": ["--held-out", "0.3"]}
    texts = []
    for _, *command in commands:
        more = next((flags for verb, flags in small.items() if verb in command), ["--max-new-tokens", "9"])
        done = CliRunner().invoke(cli, [*command, *more, "--threads", "1"])
        assert done.exit_code == 0, done.output
        texts.append(done.stdout)
    assert [command[1] for command in commands] == ["train", "train", "generate", "generate"]
    assert texts[2] == texts[3]  # with the head, and without a draft


@pytest.mark.embedded
def test_the_notebook_runs(cheap_rows):
    """Guards every cell, in order. No Jupyter: its kernel would bring fifteen packages to run the same lines."""
    book = json.loads((EXAMPLES / "tour.ipynb").read_text(encoding="utf-8"))
    assert (book["nbformat"], len({cell["id"] for cell in book["cells"]})) == (4, len(book["cells"]))
    names, shown = {}, []
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            tree = ast.parse("".join(cell["source"]))
            last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "tour.ipynb", "exec"), names)
            shown.append(eval(compile(last, "tour.ipynb", "eval"), names) if last else None)
    assert shown[1]["suffix"] < shown[1]["plain"]
    assert "underline" in shown[2]._repr_html_()
    assert all("<table" in table._repr_html_() for table in shown[-2:])


def test_the_container_runs_the_commands_of_the_readme():
    """Guards the recipe without a builder: its commands stand in the README, and what it copies is here."""
    lines = (EXAMPLES / "Containerfile").read_text(encoding="utf-8").splitlines()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = {line.partition("#")[0].strip() for line in readme.splitlines()}
    ours = [line.removeprefix("RUN ") for line in lines if re.match(r"RUN (pip|selfspec) ", line)]
    assert len(ours) == 3
    assert {re.sub(r"'\.\[\w+\]'", ".", command) for command in ours} <= commands
    copied = [part for line in lines if re.match(r"COPY [^-]", line) for part in line.split()[1:-1]]
    assert {"native", "src", "pyproject.toml"} <= set(copied)
    assert all((ROOT / part).exists() for part in copied)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_programs_on_pages_are_the_examples(page):
    """Guards pages that show an example: the fence after a link to it and a colon is the file."""
    shown = re.findall(
        r"\]\([./]*examples/(\w+\.\w+)\):\n+```\w+\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
    )
    for name, program in shown:
        assert program == (EXAMPLES / name).read_text(encoding="utf-8"), name
    assert shown or page.name not in ("README.md", "own-drafter.md")


def _code_of(path):
    """Numbers of the lines that hold code, and the classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = {number for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if line.strip()}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module) and ast.get_docstring(node):
            first = node.body[0]
            lines -= set(range(first.lineno, first.end_lineno + 1))
    return lines, [node for node in tree.body if isinstance(node, ast.ClassDef)]
