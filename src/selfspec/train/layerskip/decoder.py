"""A model of transformers with its layers in reach: some left out for some samples, states taken behind some."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from selfspec.errors import UnsupportedModelError
from selfspec.model.families import layout_of, weights_by_role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from selfspec.model.checkpoint import Checkpoint
    from selfspec.model.config import ModelConfig


class Decoder(nn.Module):
    """A causal language model of transformers, of which ``config`` says what its parts are called."""

    def __init__(self, model: Any, config: ModelConfig) -> None:
        super().__init__()
        if config.logit_cap is not None:
            raise UnsupportedModelError(f"{config.family} caps its logits, which this training does not")
        self.config = config
        self.body = model.base_model
        if not config.tied_head:
            self.lm_head = model.get_output_embeddings()
        names = weights_by_role(config)
        # in lists, which are no children: every weight is registered once, above
        self._model = [model]
        self._layers = [*model.get_submodule(layout_of(config).prefix.rstrip("."))]
        self._ends = [model.get_submodule(names["final_norm"].name.rpartition(".")[0])]

    @property
    def model(self) -> Any:
        """The model of transformers."""
        return self._model[0]

    @property
    def head(self) -> Tensor:
        """The matrix [V, d] of its LM head, which may be its embedding."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    def normed(self, states: Tensor) -> Tensor:
        """What the LM head reads of the states after some layer [R, d]."""
        found: Tensor = self._ends[0](states) * self.config.logit_scale
        return found

    def forward(self, tokens: Tensor, kept: Tensor | None, exits: Sequence[int]) -> dict[int, Tensor]:
        """The states [B, T, d] after each of the layers ``exits``.

        ``tokens`` [B, T] may have anything behind the end of a text: no row looks ahead. ``kept`` [L, B] says which
        layers run which texts; the others pass on what enters them.
        """
        found: dict[int, Tensor] = {}
        with self._watched(kept, exits, found):
            self.body(input_ids=tokens, use_cache=False)
        return found

    @contextmanager
    def _watched(self, kept: Tensor | None, exits: Sequence[int], found: dict[int, Tensor]) -> Iterator[None]:
        wanted = set(exits)

        def behind(number: int, entered: Tensor, made: Any) -> Any:
            out = made[0] if isinstance(made, tuple) else made
            if kept is not None and not bool(kept[number - 1].all()):
                out = torch.where(kept[number - 1][:, None, None], out, entered)
            if number in wanted:
                found[number] = out
            return (out, *made[1:]) if isinstance(made, tuple) else out

        hooks = [
            layer.register_forward_hook(_hook(number, behind), with_kwargs=True)
            for number, layer in enumerate(self._layers, 1)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _hook(number: int, behind: Any) -> Any:
    def hook(_layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Any) -> Any:
        return behind(number, args[0] if args else kwargs["hidden_states"], made)

    return hook


def decoder_of(checkpoint: Checkpoint, is_new: bool, seed: int) -> Decoder:
    """The model of a checkpoint in float32; with ``is_new`` with weights that have learned nothing."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with quietly():
        if is_new:
            torch.manual_seed(seed)
            config = AutoConfig.from_pretrained(checkpoint.folder)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        else:
            model = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32)
    return Decoder(model, checkpoint.config)


@contextmanager
def quietly() -> Iterator[None]:
    """Without the progress bars of transformers, which are for models that take long to read."""
    from transformers.utils import logging

    was = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was:
            logging.enable_progress_bar()
