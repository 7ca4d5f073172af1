"""Who may import whom: downwards only, as docs/architecture.md draws it; and the base imports no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import selfspec

ROOT = Path(selfspec.__file__).parent

# From the bottom up; a module may import its own layer (same prefix) and those before it.
LAYERS = [
    [
        "_version",
        "errors",
        "documents",
        "journal",
        "prefixes",
        "settings",
        "unseen",
        "plans",
        "types",
        "rounds",
        "control",
        "modes",
    ],
    ["model"],
    ["traffic"],
    ["_native"],
    ["runtime.base", "runtime.products", "runtime"],
    ["machine"],
    ["processors", "grammar"],
    ["sampling", "verify"],
    ["context", "feeds", "joining", "on_device", "scoring", "watch"],
    ["learning"],
    ["drafters"],
    ["decode", "reference"],
    ["request", "wire"],
    ["tuned"],
    ["encoding", "engine", "stream", "batch", "flight", "generation"],
    ["loading"],
    ["doctor"],
    ["measure"],
    ["reporting"],
    ["server"],
    ["export"],
    ["hf", "vllm", "llamacpp"],
    ["train"],
    ["cli", "__main__"],
]
TORCH = ("runtime.torch", "runtime.products", "hf.", "train.heads", "train.layerskip", "train.distill")
RIVALS = {"measure.hf"}  # other programs that run in this process, imported when they are asked for
ENTRANCE = {""}  # the package itself re-exports lazily


def layer_of(module: str) -> int:
    for level, prefixes in enumerate(LAYERS):
        if any(module == p or module.startswith(p + ".") for p in prefixes):
            return level
    raise AssertionError(f"selfspec.{module} has no layer: give it one here and in docs/architecture.md")


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names if is_module(f"{node.module}.{a.name}"))


def is_module(name: str) -> bool:
    path = ROOT.parent / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=lambda value: str(value).rsplit("/")[-1])
def test_imports_go_downwards(module, path):
    """Guards the layering; imports for type checking count too."""
    if module in ENTRANCE:
        return
    for name in imports(path):
        if name.startswith("selfspec."):
            target = name.removeprefix("selfspec.")
            assert layer_of(target) <= layer_of(module), f"selfspec.{module} imports selfspec.{target}"


def test_no_torch_below_the_torch_runtime():
    """Guards the light base: only the torch runtime, and rivals, may name torch."""
    for module, path in modules():
        if module not in RIVALS and not module.startswith(TORCH):
            assert not any(name.split(".")[0] in {"torch", "transformers"} for name in imports(path)), module


def test_importing_everything_but_the_torch_runtime_loads_no_torch():
    """Guards start-up: the engine, the drafters and the command line must come without torch."""
    names = [f"selfspec.{m}" for m, _ in modules() if not m.startswith(TORCH)]
    code = (
        "import sys, importlib\n"
        f"for name in {names!r}: importlib.import_module(name.rstrip('.'))\n"
        "bad = {'torch', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'loaded {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
