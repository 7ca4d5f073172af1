"""What comes back of a call: token ids as ``generate`` gives them, statistics, and what streamers are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from torch import Tensor

    from selfspec.hf.rows import Row
    from selfspec.request import Completion


@dataclass(frozen=True)
class Speculation:
    """How the texts of a call came about: one `Completion` for each row of the batch, and their sums.

    ``acceptance_rate`` is α (accepted ÷ drafted), ``mean_accepted_length`` τ (tokens per round, bonus included);
    both are None where there was nothing to count.
    """

    rows: tuple[Completion, ...]

    def _sum(self, name: str) -> Any:
        return sum(getattr(row.stats, name) for row in self.rows)

    @property
    def draft(self) -> str:
        """The drafter."""
        return self.rows[0].draft

    @property
    def rounds(self) -> int:
        """Verifications, counted for each text."""
        return int(self._sum("rounds"))

    @property
    def drafted(self) -> int:
        """Draft tokens."""
        return int(self._sum("drafted"))

    @property
    def accepted(self) -> int:
        """Those that hold."""
        return int(self._sum("accepted"))

    @property
    def acceptance_rate(self) -> float | None:
        """α."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """τ."""
        return (self._sum("tokens") - self._sum("texts")) / self.rounds if self.rounds else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        names = ("draft", "rounds", "drafted", "accepted", "acceptance_rate", "mean_accepted_length")
        return {name: getattr(self, name) for name in names} | {"rows": [row.to_dict() for row in self.rows]}


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):  # type: ignore[misc]  # transformers is not typed
    """What ``return_dict_in_generate`` gives, and how it came about; there is no ``cache`` to go on with."""

    speculation: Speculation | None = None


def output(input_ids: Tensor, rows: Sequence[Row], config: Any, speculation: Speculation) -> Any:
    """The rows, each padded on its right to the longest."""
    length = max(row.length for row in rows) - input_ids.shape[1]
    new = input_ids.new_full((len(rows), length), _pad(config))
    for i, row in enumerate(rows):
        new[i, : len(row.new)] = row.new
    sequences = torch.cat([input_ids, new], dim=-1)
    if not config.return_dict_in_generate:
        return sequences
    return SpeculativeOutput(
        sequences=sequences,
        scores=_steps([row.scores for row in rows], length, _pad(config)),
        logits=_steps([row.logits for row in rows], length, _pad(config)),
        speculation=speculation,
    )


def _pad(config: Any) -> int:
    """What fills the rows that have ended; 0 where transformers has none, since all end together then."""
    pad = config._pad_token_tensor
    return 0 if pad is None else int(pad)


def _steps(rows: list[list[Tensor] | None], length: int, pad: int) -> tuple[Tensor, ...] | None:
    """For each new token the scores [B, V] that it was chosen by; a row that has ended has only its pad left."""
    kept = [row for row in rows if row is not None]
    if not kept:
        return None
    ended = torch.full_like(kept[0][0], -torch.inf)
    ended[0, pad] = 0.0
    return tuple(torch.cat([row[t] if t < len(row) else ended for row in kept]) for t in range(length))


class Streamed:
    """Gives a streamer one token of every text at a time, once all have it; those that have ended get pads."""

    def __init__(self, streamer: Any, rows: Sequence[Row], config: Any) -> None:
        self._streamer, self._rows, self._pad = streamer, rows, _pad(config)
        self._sent = 0

    def put(self, ended: Container[int]) -> None:
        """Pass on what is there; ``ended`` are the indices of texts that have ended."""
        if self._streamer is None:
            return
        counts = [row.length - row.prompt_length for row in self._rows]
        growing = [count for i, count in enumerate(counts) if i not in ended]
        for step in range(self._sent, min(growing or [max(counts)])):
            tokens = [
                int(row.new[step]) if step < n else self._pad for row, n in zip(self._rows, counts, strict=True)
            ]
            self._streamer.put(torch.tensor(tokens))
            self._sent += 1

    def end(self) -> None:
        """Say that this was all."""
        if self._streamer is not None:
            self._streamer.end()
