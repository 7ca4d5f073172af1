"""Write docs/api.md from what `selfspec` exports; a test keeps the two equal."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import selfspec

PAGE = Path(__file__).with_name("api.md")
SECTIONS = {
    "Generate": (
        *("load", "Engine", "Conversation", "Request", "Sampling", "Completion", "Stats"),
        *("Stream", "AsyncStream", "Chunk", "Round", "LayerPlan"),
    ),
    "Measure and choose": (
        *("estimate", "Estimate", "plan", "MemoryPlan", "profile", "ProfileReport"),
        *("simulate", "Simulated", "tune", "Tuning"),
    ),
    "Errors": (
        *("SelfspecError", "OptionError", "ConstraintError", "PromptError", "RuntimeMissingError"),
        *("OutOfMemoryError", "TrainingError", "ModelError", "ModelNotFoundError", "UnsupportedModelError"),
        "CorruptModelError",
    ),
}

_HEAD = """# Public names, and what is promised of them

Made from `selfspec.__all__` by `make docs`. `selfspec.__version__` is the version; `selfspec.hf`, `selfspec.llamacpp` and `selfspec.vllm` are doors into other engines ([transformers.md](transformers.md), [exports.md](exports.md)).

## Versions

Public are: the names below with their documented parameters, fields and methods; options of requests and drafters by name ([drafters.md](drafters.md)); commands, flags, exit codes and fields of `--json` ([cli.md](cli.md)); endpoints and fields of the server ([serving.md](serving.md)); files that are kept (heads, profiles, tuned drafts, certificates, packed folders, data); the entry-point group `selfspec.drafters` with the seam of [own-drafter.md](own-drafter.md); `selfspec.train.data`.

- **Patch releases** (0.1.1) mend, and break nothing that is public.
- **Minor releases** before 1.0 (0.2) may change what is public; the changelog says what, and what to write instead. From 1.0 on only major releases may, and a name that goes warns (`DeprecationWarning`) for at least one minor release before.
- **Files** name their format. A version reads those of its own format and refuses others in one line; it never guesses.
- **Texts**: in every version a text is plain decoding's of that version, model, runtime, precision and machine kind. That another version gives the same text for a seed is not promised.
- Not public: all else, such as modules below `selfspec.`, wording of messages and of what commands print for people, and speed.
- Pythons: those that get fixes from their makers, from 3.11 on.
"""


def page() -> str:
    """The page, as Markdown."""
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted(named) == sorted(set(selfspec.__all__) - {"__version__"}), "SECTIONS has every public name once"
    return "\n".join([_HEAD, *(line for title, names in SECTIONS.items() for line in _section(title, names))])


def _section(title: str, names: tuple[str, ...]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| name | what it is |"
    yield "|---|---|"
    for name in names:
        found = getattr(selfspec, name)
        first = (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")
        yield f"| `{_shown(name, found)}` | {first} |"
    yield ""


def _shown(name: str, found: object) -> str:
    """A function with its parameters, a class alone."""
    if inspect.isclass(found):
        return name
    assert inspect.isfunction(found)
    return f"{name}({', '.join(map(_parameter, inspect.signature(found).parameters.values()))})"


def _parameter(parameter: inspect.Parameter) -> str:
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "..." if callable(parameter.default) else repr(parameter.default)
    is_given = parameter.default is not inspect.Parameter.empty
    return f"{star}{parameter.name}" + (f"={default}" if is_given else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
