"""The engine of a transformers model: made once, kept beside the model as long as it lives, and never in it."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from selfspec.errors import UnsupportedModelError
from selfspec.loading import load
from selfspec.runtime.torch_objects import adapters_of

if TYPE_CHECKING:
    from selfspec.engine import Engine

_ENGINES: WeakKeyDictionary[Any, tuple[Any, Engine]] = WeakKeyDictionary()
_LOCK = Lock()


def engine_of(model: Any) -> Engine:
    """The engine that shares the tensors of ``model``; a new one where they, or its adapters, have changed.

    Raises UnsupportedModelError for a model that it cannot run as it stands.
    """
    _check_prompts(model)
    with _LOCK:  # two threads must not make it twice
        now = _identity(model)
        found = _ENGINES.get(model)
        if found is None or found[0] != now:
            _ENGINES[model] = found = (now, load(model))
        return found[1]


def _identity(model: Any) -> Any:
    """What tells whether a model still computes what it did."""
    tensors = [(id(p), *_storage(p)) for p in model.parameters()]
    adapters = [
        (path, layer.merged, layer.disable_adapters, *layer.active_adapters) for path, layer in adapters_of(model)
    ]
    return model.config.to_json_string(use_diff=False), tensors, adapters


def _storage(tensor: Any) -> tuple[int, int]:
    """Where a tensor's numbers lie, and how often they were changed; kinds of torchao have no address."""
    try:
        place = int(tensor.data_ptr())
    except RuntimeError:
        place = 0
    return place, 0 if tensor.is_inference() else int(tensor._version)


def _check_prompts(model: Any) -> None:
    """PEFT's prompt learning puts vectors before a prompt on the way into the model: they would be left out."""
    owner = getattr(vars(model).get("prepare_inputs_for_generation"), "__self__", None)
    if owner is not None and owner is not model:
        config: Any = getattr(owner, "active_peft_config", None)
        if getattr(config, "is_prompt_learning", False):
            raise UnsupportedModelError(
                f"{type(owner).__name__} puts learned vectors before the prompt ({config.peft_type}); only LoRA "
                "adapters can be drafted with"
            )
