"""What ``custom_generate="<this folder, or a repository that holds it>"`` calls; see docs/transformers.md."""

from __future__ import annotations

from typing import Any

import selfspec.hf


def generate(model: Any, **arguments: Any) -> Any:
    """All arguments of ``model.generate``, with those of a drafter."""
    return selfspec.hf.from_folder(model, **arguments)
