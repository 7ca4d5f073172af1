"""What `selfspec profile --out FILE` measured, for `auto` to begin with: v(T), and c and α of early exits.

It is a beginning only: times and acceptance are counted on from there, and what is measured now outweighs it soon.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.documents import require_format
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.drafters.base import Host


@dataclass(frozen=True)
class Exit:
    """An early exit: c of a draft step, and α by depth of the draft."""

    c: float
    alphas: tuple[float, ...]


@dataclass(frozen=True)
class Prior:
    """``seconds`` of passes of 1, 2, ... rows, and what exits do by their layer, at the first temperature."""

    seconds: tuple[float, ...]
    exits: Mapping[int, Exit]


def read_prior(file: str, host: Host) -> Prior | None:
    """What the file says of this model on this machine; of another one None, and the user is told in one line.

    Raises OptionError where the file cannot be read, or is no finished profile.
    """
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
        require_format(found, f"the profile {file!r}")
        identity, prior = found["identity"], prior_of(found)
        other = [name for name, value in facts_of(host).items() if identity[name] != value]
        if identity["machine"]["platform"] != platform.platform(terse=True):
            other.append("machine")
    except OSError as error:
        raise OptionError(f"the profile {file!r} cannot be read: {error.strerror}") from None
    except OptionError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        raise OptionError(
            f"{file!r} is no finished profile; give what `selfspec profile --out FILE` wrote"
        ) from None
    if other:
        host.notify(f"the profile {file!r} was measured with another {' and '.join(other)}; it is left out")
        return None
    return prior


def facts_of(host: Host) -> dict[str, str]:
    """What measurements must have in common with an engine: fields of the identity that they are kept with."""
    runtime = host.runtime
    return {
        "fingerprint": host.fingerprint,
        "runtime": runtime.name,
        "runs_on": runtime.runs_on,
        "precision": runtime.precision,
    }


def prior_of(found: Mapping[str, Any]) -> Prior:
    """What a finished profile says; LookupError, TypeError, ValueError or AttributeError for something else."""
    seconds = tuple(float(second) for second in found["passes"][0]["seconds"])
    exits: list[Any] = next(iter(found["exits"].values()), [])
    return Prior(seconds, {int(row["exit_layer"]): Exit(float(row["c"]), _alphas(row)) for row in exits})


def _alphas(row: Mapping[str, Any]) -> tuple[float, ...]:
    """By depth, as far as they were seen; where no depth was, the mean."""
    by_position: Sequence[float | None] = row["alpha_by_position"]
    seen = tuple(float(alpha) for alpha in by_position if alpha is not None)
    return seen or ((float(row["alpha"]),) if row["alpha"] is not None else ())
