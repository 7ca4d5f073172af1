"""Makes docs/results.md: runs what is missing, one after the other, and writes the page from what was measured.

    python bench/results.py FOLDER --data bench.jsonl --gguf FOLDER_OF_GGUFS --python llama.cpp=/env/bin/python

Run nothing beside it; it takes about half an hour. ``--data`` are the prompts of Spec-Bench, for the claims about
its tasks; the rest uses the built-in prompts. ``--gguf`` is a folder of make_gguf.py, ``--onnx`` one of ONNX
Runtime GenAI's model builder. A rival without its Python is skipped, and the page says so. Results stay in FOLDER:
a second call goes on where the first one stopped, and ``--page`` only writes the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selfspec._version import __version__
from selfspec.cli.bench_page import page
from selfspec.machine import machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results.md"
EARLY = "early_exit:exit_layer=26:gamma=2"


@dataclass(frozen=True)
class Run:
    """One section of the page."""

    name: str
    title: str
    arguments: tuple[str, ...]
    gguf: str = ""  # which file llama.cpp gets; "" is the one as shipped
    needs_data: bool = False

    @property
    def is_bench(self) -> bool:
        """Whether it is `selfspec bench`, with a document; the others are scripts, with a text."""
        return self.arguments[0] == "bench"


def bench(name: str, title: str, bits: int | None, drafts: str, rivals: str, gguf: str = "") -> Run:
    """`selfspec bench` on the built-in prompts."""
    precision = () if bits is None else ("--bits", str(bits))
    shape = ("--limit", "1", "--repeats", "1", "--max-new-tokens", "64")
    return Run(name, title, ("bench", *precision, *shape, "--drafts", drafts, "--rivals", rivals), gguf)


def look_up(bits: int) -> Run:
    """`ngram` on the six tasks of Spec-Bench."""
    shape = ("--bits", str(bits), "--limit", "7", "--repeats", "1", "--max-new-tokens", "96", "--drafts", "ngram")
    return Run(f"ngram-{bits}", f"Look-up on Spec-Bench, {bits} bits", ("bench", *shape), needs_data=True)


def controlled(bits: int, more: str = "") -> Run:
    """`auto` beside what it chooses from."""
    shape = (
        "--bits",
        str(bits),
        "--repeats",
        "2",
        "--max-new-tokens",
        "64",
        "--drafts",
        f"plain,suffix,auto{more}",
    )
    return Run(f"auto-{bits}", f"The controller, {bits} bits", ("bench", *shape))


def skipped(model: str, *precision: str) -> Run:
    """Drafts that need no training, by what they leave out."""
    shape = ("--ratios", "0.1,0.3", "--limit", "1", "--repeats", "1", "--window", "16", "--max-new-tokens", "64")
    arguments = ("bench/skip_ratios.py", "--model", model, *precision, *shape)
    return Run(f"skipped-{model}", f"Drafts without training, by the share left out: {model}", arguments)


LOOKUP = "llama.cpp,llama.cpp-lookup"
LIGHT = "quantized:draft_bits=4"
RUNS = (
    bench(
        "stored",
        "As shipped (the default: Q4_1 blocks, Q8_0 head)",
        None,
        f"ngram,{EARLY}",
        f"{LOOKUP},openvino-genai",
    ),
    bench("int4", "4 bits, beside Q4_0", 4, "ngram", LOOKUP, "Q4_0"),
    bench("int8", "8 bits, beside Q8_0", 8, f"ngram,{EARLY}", LOOKUP, "Q8_0"),
    bench(
        "bf16",
        "bfloat16, beside transformers in bfloat16 and F16",
        16,
        f"ngram,{EARLY}",
        f"transformers,{LOOKUP}",
        "F16",
    ),
    bench(
        *("fp32", "float32", 32, f"ngram,{EARLY}"),
        "transformers,transformers-lookup,onnxruntime-genai,llama.cpp",
        "F32",
    ),
    *(look_up(bits) for bits in (16, 8, 4)),
)
OWN = (
    controlled(16, f",{LIGHT}:gamma=4,auto:candidates=(suffix,{LIGHT})"),
    controlled(8),
    controlled(4),
    skipped("smollm2-135m", "--bits", "16"),
    skipped("gemma3-270m"),
)
"""Without rivals."""
PASSES = Run("passes", "What a pass of the native core costs", ("bench/native.py",))
EXACT = Run(
    "exact", "Exactness, without any tolerance", ("bench/exactness.py", "--tokens", "10000"), needs_data=True
)


class Results:
    """The folder of results, and how to fill it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._folder = Path(args.folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._args = args

    def path(self, run: Run) -> Path:
        """Where the result of a run lies."""
        return self._folder / (f"{run.name}.json" if run.is_bench else f"{run.name}.txt")

    def fill(self, run: Run) -> None:
        """Run it, unless its result is there. Raises CalledProcessError if it fails."""
        if self.path(run).exists() or (run.needs_data and not self._args.data):
            return
        part = self.path(run).with_suffix(".part")
        if run.is_bench:
            command = [sys.executable, "-m", "selfspec", *run.arguments, *self._rivals(run), "--out", str(part)]
        else:
            command = [sys.executable, *run.arguments]
        if run.needs_data:
            command += ["--data", self._args.data]
        if run is EXACT:
            command += ["--out", str(self._folder / "exactness")]
        print(f"{run.title} ...", file=sys.stderr)
        root = Path(__file__).resolve().parent.parent
        done = subprocess.run(command, check=True, cwd=root, stdout=subprocess.PIPE, text=True)  # noqa: S603
        if not run.is_bench:
            part.write_text(done.stdout, encoding="utf-8")
        part.rename(self.path(run))

    def _rivals(self, run: Run) -> Iterator[str]:
        for pair in self._args.python:
            yield from ("--rival-python", pair)
        if run.gguf and self._args.gguf:
            yield from ("--rival-model", f"llama.cpp={Path(self._args.gguf, run.gguf).with_suffix('.gguf')}")
        if "onnxruntime-genai" in " ".join(run.arguments) and self._args.onnx:
            yield from ("--rival-model", f"onnxruntime-genai={self._args.onnx}")

    def sections(self) -> Iterator[str]:
        """What is there, as Markdown."""
        for run in (*RUNS, *OWN, PASSES, EXACT):
            if not self.path(run).exists():
                continue
            command = "selfspec" if run.is_bench else "python"
            data = " --data SPEC_BENCH" if run.needs_data else ""
            text = self.path(run).read_text(encoding="utf-8")
            if run.is_bench:
                document = json.loads(text)
                document["options"]["data"] = "Spec-Bench" if run.needs_data else "built-in"
                text = click.unstyle(page(document))
            else:
                text = "\n".join(line for line in text.splitlines() if not line.startswith("["))
            rivals = (
                f"\n\nllama.cpp reads {run.gguf or 'the file as shipped'}."
                if "llama.cpp" in str(run.arguments)
                else ""
            )
            shown = f"`{command} {' '.join(run.arguments)}{data}`{rivals}"
            yield f"## {run.title}\n\n{shown}\n\n```text\n{text.strip()}\n```\n"


def head(found: dict[str, Any]) -> str:
    """What all sections share."""
    where = ", ".join(f"{name} {value}" for name, value in found.items() if name != "platform")
    return (
        "# Results\n\n"
        "Made by `python bench/results.py`, section by section with the command that is given.\n"
        "Model: SmolLM2-135M-Instruct, the embedded one. S is the median of tokens per second ÷ those of our own\n"
        "plain decoding in the same runtime and precision, measured in alternation, with its 90 % interval: a\n"
        "rival with S below 1 is slower than our plain decoding. docs/benchmarking.md explains the rest.\n\n"
        f"selfspec {__version__}; {where}\n"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Fill the folder and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--data", default=None)
    parser.add_argument("--gguf", default=None)
    parser.add_argument("--onnx", default=None)
    parser.add_argument("--python", action="append", default=[], metavar="RIVAL=PYTHON")
    parser.add_argument("--only", nargs="+", default=None, help="these sections; by default all but exact")
    parser.add_argument("--page", action="store_true", help="only write the page")
    args = parser.parse_args(argv)
    results = Results(args)
    for run in () if args.page else (*RUNS, *OWN, PASSES, EXACT):
        if run.name in args.only if args.only else run is not EXACT:
            results.fill(run)
    PAGE.write_text("\n".join([head(dict(machine())), *results.sections()]), encoding="utf-8")


if __name__ == "__main__":
    main()
