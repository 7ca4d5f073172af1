"""What a run tells: steps, evaluations, checkpoints; and the history that it keeps of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from selfspec.documents import json_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass
class Progress:
    """Where a run is: ``batch`` of ``epoch``, after ``step`` steps on ``tokens`` answer tokens in ``seconds``."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Event:
    """``kind`` "step" (``facts``: loss, kl, learning_rate, gradient), "evaluation" (heads, took), "checkpoint"."""

    kind: str
    progress: Progress
    share: float  # of the training that is done
    facts: Mapping[str, Any]


class History:
    """Lines of JSON, one for each step and evaluation; those after a checkpoint go when a run resumes there."""

    def __init__(self, path: Path, step: int) -> None:
        self._path = path
        kept = [line for line in self.read(path) if line["step"] <= step] if step else []
        aside = path.with_name(f".{path.name}")
        aside.write_text("".join(f"{json_line(line)}\n" for line in kept), encoding="utf-8")
        aside.replace(path)

    def add(self, event: Event) -> None:
        """Append what happened."""
        document = {"kind": event.kind, **asdict(event.progress), **event.facts}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{json_line(document)}\n")

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """All whole lines."""
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
