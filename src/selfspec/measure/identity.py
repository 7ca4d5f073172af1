"""What measurements belong to: model, precision, machine, data and options."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec._version import __version__
from selfspec.machine import machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.engine import Engine
    from selfspec.measure.settings import Workload


def identity_of(engine: Engine, options: Workload, free: Sequence[str]) -> dict[str, Any]:
    """What measurements must share to stand in one file: all but the ``free`` options, and where data lies."""
    data = b"" if options.data is None else Path(options.data).read_bytes()
    return {
        "selfspec": __version__,
        "model": engine.name,
        "runtime": engine.runtime.name,
        "runs_on": engine.runtime.runs_on,
        "precision": engine.runtime.precision,
        "machine": machine(),
        "fingerprint": engine.fingerprint,
        "data": hashlib.sha256(data).hexdigest(),
        "options": {name: value for name, value in asdict(options).items() if name not in (*free, "data")},
    }
