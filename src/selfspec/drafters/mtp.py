"""The multi-token module that came with the checkpoint drafts (DeepSeek-V3, arXiv 2412.19437; Qwen3-Next).

It was trained to say the token after the next from the last state and the next token. For a longer draft it goes on
with its own output in place of the state, as the models' makers do; it is less often right there. Its rows, cells
and keys are those of an EAGLE head (`selfspec.drafters.eagle`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.drafters.base import inherited
from selfspec.drafters.comb import CombOptions
from selfspec.drafters.eagle import FeatureDrafter
from selfspec.drafters.trained import Beside

if TYPE_CHECKING:
    from selfspec.drafters.base import Host
    from selfspec.model.config import ModelConfig


@dataclass(frozen=True)
class MtpOptions(CombOptions):
    """Options of `Mtp`."""

    gamma: int = inherited(CombOptions, "gamma", 2)


class _Module(Beside):
    """The module of a checkpoint."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__((config.num_layers,), attends=True)
        self._config = config

    def bind(self, host: Host) -> None:
        """Read it from the checkpoint, once; raises OptionError where none came with the model."""
        self._attached = made = host.kept(("mtp",), host.runtime.attach_module)
        config, own = self._config, made.config.active_layer_parameters + 2 * self._config.hidden_size**2
        self.row_layers = own / config.active_layer_parameters
        self.share = (own + config.head_parameters) / config.pass_parameters


class Mtp(FeatureDrafter):
    """Drafts with the multi-token module of the target's own checkpoint."""

    Options = MtpOptions
    name = "mtp"
    summary = "the multi-token module that came with the checkpoint (Qwen3-Next, Qwen3.5); KV of one layer"
    paper = "DeepSeek-V3 (arXiv 2412.19437)"
    pays = "on checkpoints that bring a multi-token module: it was trained with the model"
    usual_alpha = 0.7

    def __init__(self, options: MtpOptions, config: ModelConfig) -> None:
        super().__init__(options, config, _Module(config))

    @property
    def runs(self) -> str:
        """The module."""
        return "multi-token module"
