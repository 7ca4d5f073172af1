"""Drafts inside transformers' own ``generate``: batches, processors, criteria and streamers as they are.

>>> import selfspec
>>> model.generate(**inputs, custom_generate=selfspec.hf.generate, draft="early_exit", exit_layer=8)

``FOLDER`` is the same as a folder for ``custom_generate`` (with ``trust_remote_code=True``), which may also lie in
a repository on the Hub. See docs/transformers.md.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.errors import RuntimeMissingError

if TYPE_CHECKING:
    from selfspec.hf.calling import from_folder, generate
    from selfspec.hf.results import Speculation, SpeculativeOutput

__all__ = ["FOLDER", "Speculation", "SpeculativeOutput", "from_folder", "generate"]

FOLDER = str(Path(__file__).parent)
_NEEDED = {"torch", "transformers"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'selfspec.hf' has no attribute {name!r}")
    try:
        module = import_module(f"selfspec.hf.{'results' if name.startswith('Spec') else 'calling'}")
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        raise RuntimeMissingError(
            f"{error.name} is missing; install it with: pip install 'selfspec[hf]'"
        ) from error
    return getattr(module, name)
