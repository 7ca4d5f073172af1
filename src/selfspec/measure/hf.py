"""Transformers' ``generate`` as a rival, in this process and on the runtime's own tensors where it has torch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec.drafters.base import option
from selfspec.errors import OptionError
from selfspec.measure.timing import Answer, Ask, Column, ColumnError
from selfspec.model.config import DTYPE_BYTES
from selfspec.types import require_types

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from selfspec.engine import Engine


@dataclass(frozen=True)
class GenerateOptions:
    """Plain `generate` has none."""


@dataclass(frozen=True)
class EarlyExitOptions:
    """`assistant_early_exit`, whose settings transformers reads from the model's generation config only."""

    exit_layer: int | None = option(None, "Layer at which the draft leaves; by default the middle one.")
    gamma: int = option(4, "Tokens to draft per round.")
    confidence: float = option(0.4, "Stop drafting below this; 0.4 is transformers' default, 0 never stops.")

    def __post_init__(self) -> None:
        require_types(self)
        if self.gamma < 1:
            raise OptionError(f"gamma is {self.gamma}; it must be at least 1")
        if not 0.0 <= self.confidence <= 1.0:
            raise OptionError(f"confidence is {self.confidence}; it must be 0 to 1")


@dataclass(frozen=True)
class LookupOptions:
    """Prompt look-up."""

    gamma: int = option(10, "Tokens to copy per round.")
    ngram: int = option(2, "Longest n-gram to look up.")

    def __post_init__(self) -> None:
        require_types(self)
        if self.gamma < 1 or self.ngram < 1:
            raise OptionError(f"gamma is {self.gamma} and ngram is {self.ngram}; both must be at least 1")


class Transformers:
    """The model that all columns of this rival share, loaded when the first one is opened."""

    def __init__(self, engine: Engine, folder: Callable[[], Path]) -> None:
        self._engine, self._folder = engine, folder
        self._model: Any = None
        self.is_shared = False

    @property
    def model(self) -> Any:
        """The model.

        Raises
        ------
        ModuleNotFoundError
            transformers or torch is missing.
        ColumnError
            Transformers cannot load the model.
        """
        if self._model is None:
            try:
                self._model = self._load()
            except ModuleNotFoundError:
                raise
            except Exception as error:  # somebody else's program
                raise ColumnError(f"{type(error).__name__}: {error}") from error
        return self._model

    def _load(self) -> Any:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.set_verbosity_error()  # its remarks on its own calls would be taken for ours
        logging.disable_progress_bar()
        precision = self._engine.runtime.precision
        dtype = getattr(torch, precision) if precision in DTYPE_BYTES else "auto"
        model = AutoModelForCausalLM.from_pretrained(self._folder(), dtype=dtype).eval()
        tensors = getattr(self._engine.runtime, "weights", None)
        if tensors and all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
            model.load_state_dict(dict(tensors), strict=False, assign=True)
            model.tie_weights()
            model.to(next(iter(tensors.values())).device)  # the buffers
            self.is_shared = True
        return model


class TransformersColumn(Column):
    """One way of calling ``generate``."""

    def __init__(self, label: str, shared: Transformers, options: Any, layers: int) -> None:
        from importlib.metadata import version

        self.name = label
        self._options, self._layers = options, layers
        if isinstance(options, EarlyExitOptions) and not 1 <= self._exit_layer < layers:
            raise OptionError(f"exit_layer is {self._exit_layer}; it must be 1 to {layers - 1}")
        self._model = shared.model
        self.is_comparable = shared.is_shared
        precision = str(self._model.dtype).removeprefix("torch.")
        self.about = {
            "runtime": f"transformers {version('transformers')}",
            "precision": precision,
            "weights": "shared tensors" if shared.is_shared else "a copy of its own",
        }

    @property
    def _exit_layer(self) -> int:
        chosen = self._options.exit_layer
        return self._layers // 2 if chosen is None else int(chosen)

    def answer(self, ask: Ask, first: Callable[[], None]) -> Answer:
        """Call ``generate``; all its settings are set anew, since early exit reads some from the model."""
        import torch

        model, layers = self._model, self._model.config.num_hidden_layers
        own = model.generation_config
        model.generation_config = self._config(ask, own)
        ids = torch.tensor([ask.prompt], device=model.device)
        torch.manual_seed(ask.seed)
        try:
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), streamer=_First(first), **self._arguments()
            )
        except Exception as error:  # somebody else's program
            raise ColumnError(f"{type(error).__name__}: {error}") from error
        finally:
            model.generation_config = own
            model.config.num_hidden_layers = layers  # early exit lowers it, and leaves it so when it fails
        return Answer(tuple(out[0, len(ask.prompt) :].tolist()))

    def _arguments(self) -> dict[str, Any]:
        if isinstance(self._options, EarlyExitOptions):
            return {"assistant_early_exit": self._exit_layer}
        if isinstance(self._options, LookupOptions):
            return {
                "prompt_lookup_num_tokens": self._options.gamma,
                "max_matching_ngram_size": self._options.ngram,
            }
        return {}

    def _config(self, ask: Ask, own: Any) -> Any:
        from transformers import GenerationConfig

        settings: dict[str, Any] = {
            "max_new_tokens": ask.max_new_tokens,
            "eos_token_id": None if ask.ignore_eos else own.eos_token_id,
            "pad_token_id": 0,
            "do_sample": ask.temperature > 0.0,
        }
        if ask.temperature > 0.0:
            settings |= {"temperature": ask.temperature, "top_k": 0, "top_p": 1.0}
        if isinstance(self._options, EarlyExitOptions):
            settings |= {
                "num_assistant_tokens": self._options.gamma,
                "num_assistant_tokens_schedule": "constant",
                "assistant_confidence_threshold": self._options.confidence,
            }
        return GenerationConfig(**settings)


class _First:
    """A streamer that tells when the first new token is there; the first thing it is given is the prompt."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._first = first
        self._calls = 0

    def put(self, _value: Any) -> None:
        """Take tokens."""
        self._calls += 1
        if self._calls == 2:
            self._first()

    def end(self) -> None:
        """Nothing to do."""
