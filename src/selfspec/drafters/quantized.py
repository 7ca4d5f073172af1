"""Quantised self-draft: the same model in fewer bits drafts on the target's own cache (QSpec, arXiv 2410.11305).

Keys and values of committed tokens are the target's, in its precision; those of the draft's rows are the
draft's, until verification, which runs every one of these rows through all layers, overwrites them. So there
is no second cache and no second prefill. The draft's weights are held beside the target's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.drafters.base import Extra, option
from selfspec.drafters.comb import CombOptions
from selfspec.drafters.steps import Growing, StepDrafter
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context
    from selfspec.drafters.base import Host
    from selfspec.model.config import ModelConfig
    from selfspec.runtime.base import Runtime
    from selfspec.types import Array


@dataclass(frozen=True)
class QuantizedOptions(CombOptions):
    """Options of `Quantized`."""

    draft_bits: int | None = option(
        None, "Bits a weight of the draft: 4 or 8, fewer than the target has. Default: the next fewer.", opens=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draft_bits is not None and self.draft_bits not in (4, 8):
            raise OptionError(f"draft_bits is {self.draft_bits}; it must be 4 or 8, or left out (the next fewer)")


class Quantized(StepDrafter):
    """Drafts with the target's checkpoint packed in fewer bits, on the target's cache."""

    Options = QuantizedOptions
    name = "quantized"
    summary = "the same model in fewer bits, on the same cache (runtime cpu); extra weights, no extra KV"
    paper = "QSpec (arXiv 2410.11305)"
    pays = "where the target has 16 or 8 bits a weight: 4-bit drafts gained on every task that was measured in 16"
    usual_alpha = 0.7

    def __init__(self, options: QuantizedOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._bits = options.draft_bits
        self._light: Runtime | None = None
        self._share: float | None = None

    def bind(self, host: Host) -> None:
        """Pack and open the lighter weights."""
        target = host.runtime
        if not (possible := target.fewer_bits):
            raise OptionError(f"quantized drafts in 8 or 4 bits on the cache of the cpu runtime{self._why(target)}")
        bits = possible[0] if self._bits is None else self._bits
        if bits not in possible:
            raise OptionError(
                f"draft_bits is {bits}, but this model runs in {target.precision}; it must be fewer: "
                f"{' or '.join(map(str, possible))}"
            )
        self._light = host.open_model(bits=bits, **target.placement).runtime
        self._share = self._light.pass_bytes / target.pass_bytes
        assert self._light.config == self.config

    def _why(self, target: Runtime) -> str:
        """Why not on this one, and what to do."""
        from selfspec.runtime.cpu_model import lacking  # only now: the core is not loaded to list drafters

        if missing := lacking(self.config):
            return f", which has no {missing}, and this model needs them: use another drafter"
        return (
            f"; this model runs in {target.precision} on {target.name}: use runtime cpu with more bits, or another "
            "drafter"
        )

    @property
    def step_share(self) -> float | None:
        """Bytes of a pass ÷ those of the target's."""
        return self._share

    @property
    def runs(self) -> str:
        """The precision."""
        return "unbound" if self._light is None else self._light.precision

    @property
    def extra_bytes(self) -> Extra:
        """The lighter weights; keys and values are the target's."""
        return Extra() if self._light is None else Extra(weights=self._light.weight_bytes)

    def step(self, context: Context, growing: Sequence[Growing]) -> Array:
        """All layers of the lighter model over the next rows of each draft."""
        assert self._light is not None, "no engine has bound this drafter"
        texts, rows = [chain.text for chain in growing], [chain.rows for chain in growing]
        hidden, _ = context.step(context.full, texts, rows, [chain.depth for chain in growing], self._light)
        return self._light.logits(hidden)
