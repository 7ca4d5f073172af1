"""Results that other verbs wrote, told apart by what is in them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from selfspec.documents import require_format
from selfspec.errors import OptionError
from selfspec.model.reading import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Kind: TypeAlias = Literal["bench", "profile", "tune", "plan", "certify"]

# a result of each kind has these fields, and no other kind has them all
FIELDS: dict[Kind, frozenset[str]] = {
    "tune": frozenset({"choice", "held_out", "contenders", "points"}),  # before profile: it holds one
    "bench": frozenset({"baseline", "columns", "ratios", "totals"}),
    "profile": frozenset({"passes", "rounds", "exits", "points"}),
    "plan": frozenset({"ways", "recommendation", "kv_bytes_per_token"}),
    "certify": frozenset({"verdict", "checks", "drafters"}),
}
_UNFINISHED = frozenset({"identity", "units"})  # a profile before its end
_LOOKUPS = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class Result:
    """What one file holds."""

    path: str
    kind: Kind
    document: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The name of the model, which is not where it lies."""
        named = self.document.get("name") or self.document["model"]
        return str(named["name"] if isinstance(named, dict) else named)

    @property
    def fingerprint(self) -> str:
        """Of the checkpoint; empty where the result does not tell."""
        document, named = self.document, self.document["model"]
        places = (named, document.get("identity"), document)
        return next((str(p["fingerprint"]) for p in places if isinstance(p, dict) and p.get("fingerprint")), "")

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Raise OptionError where what is read in here is missing, or is something else."""
        try:
            yield
        except OptionError:
            raise
        except _LOOKUPS as error:
            what = f"it has no {error.args[0]!r}" if isinstance(error, KeyError) else one_line(error)
            raise OptionError(
                f"{self.path!r} is no whole result of `selfspec {self.kind}` ({what}); make it again with: "
                f"selfspec {self.kind}"
            ) from error


def read_results(paths: Sequence[str]) -> list[Result]:
    """The results in files, which must be of one model in one precision and runtime.

    A file has one JSON document, or what a verb printed before it (``--json``). Raises OptionError.
    """
    results = [_read(path) for path in paths]
    if not results:
        raise OptionError(
            "no files; give what `selfspec bench --out`, `profile --out`, `certify --out`, `tune --out` or "
            "`plan --json` wrote"
        )
    for result in results:
        with result.whole():
            _require_same(results[0], result)
    return results


def _read(path: str) -> Result:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise OptionError(f"{path!r} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    document = _parsed(text, path)
    require_format(document, repr(path))
    for kind, fields in FIELDS.items():
        if fields <= document.keys():
            return Result(path, kind, document)
    if document.keys() >= _UNFINISHED:
        raise OptionError(f"{path!r} is a profile without its end; give the same `selfspec profile` command again")
    raise OptionError(f"{path!r} is no result that can be shown; it must be one of {', '.join(FIELDS)}")


def _parsed(text: str, path: str) -> dict[str, Any]:
    """One object, or the one on the last line of what a verb printed."""
    is_json = False
    for part in (text, text.rpartition("\n")[2]):
        try:
            document = json.loads(part, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            return document
        is_json = True
    if is_json:
        raise OptionError(
            f"{path!r} is JSON, but no object; give what a verb wrote with --out, or printed with --json"
        )
    raise OptionError(f"{path!r} is no JSON document; give what a verb wrote with --out, or printed with --json")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _require_same(first: Result, other: Result) -> None:
    """Raise OptionError for another model, precision or runtime; another machine is only said."""
    same = {name: (first.document[name], other.document[name]) for name in ("precision", "runtime")}
    same["model"] = (first.model, other.model)
    if first.fingerprint and other.fingerprint:
        same["fingerprint"] = (first.fingerprint, other.fingerprint)
    for name, (ours, theirs) in same.items():
        if ours != theirs:
            raise OptionError(
                f"{other.path!r} has the {name} {theirs!r}, and {first.path!r} {ours!r}; make a report of each"
            )
