"""Lossless self-speculative decoding: one model drafts shallow, verifies deep, and says exactly the same words.

>>> import selfspec
>>> engine = selfspec.load("smollm2-135m", draft="early_exit", exit_layer=26, gamma=2)
>>> print(engine.generate("Name three primary colours.").text)

Names are imported when first used, so that ``selfspec --help`` loads nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from selfspec._version import __version__

if TYPE_CHECKING:
    from selfspec.engine import Conversation, Engine
    from selfspec.errors import (
        ConstraintError,
        CorruptModelError,
        ModelError,
        ModelNotFoundError,
        OptionError,
        OutOfMemoryError,
        PromptError,
        RuntimeMissingError,
        SelfspecError,
        TrainingError,
        UnsupportedModelError,
    )
    from selfspec.loading import load
    from selfspec.measure.estimate import Estimate, estimate
    from selfspec.measure.plan import MemoryPlan, plan
    from selfspec.measure.profile import profile
    from selfspec.measure.profile_report import ProfileReport
    from selfspec.measure.simulate import Simulated, simulate
    from selfspec.measure.tuning import Tuning, tune
    from selfspec.request import Chunk, Completion, Request
    from selfspec.rounds import Round, Stats
    from selfspec.stream import AsyncStream, Stream
    from selfspec.types import LayerPlan, Sampling

__all__ = [
    "AsyncStream",
    "Chunk",
    "Completion",
    "ConstraintError",
    "Conversation",
    "CorruptModelError",
    "Engine",
    "Estimate",
    "LayerPlan",
    "MemoryPlan",
    "ModelError",
    "ModelNotFoundError",
    "OptionError",
    "OutOfMemoryError",
    "ProfileReport",
    "PromptError",
    "Request",
    "Round",
    "RuntimeMissingError",
    "Sampling",
    "SelfspecError",
    "Simulated",
    "Stats",
    "Stream",
    "TrainingError",
    "Tuning",
    "UnsupportedModelError",
    "__version__",
    "estimate",
    "load",
    "plan",
    "profile",
    "simulate",
    "tune",
]

_MODULES = (
    *("errors", "types", "rounds", "request", "engine", "loading"),
    *("measure.estimate", "measure.plan", "measure.simulate", "measure.profile", "measure.profile_report"),
    "measure.tuning",
)


_INTO_OTHERS = ("hf", "llamacpp", "vllm")  # other engines; none is imported before it is asked for


def __getattr__(name: str) -> Any:
    if name in _INTO_OTHERS:
        return import_module(f"selfspec.{name}")
    if name in __all__:
        for module in (import_module(f"selfspec.{part}") for part in _MODULES):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'selfspec' has no attribute {name!r}")
