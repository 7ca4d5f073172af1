"""What a server may do: the limits of requests, and who may draft."""

from __future__ import annotations

import math
from dataclasses import dataclass

from selfspec.errors import OptionError
from selfspec.types import require_types

LIGHT_DRAFTERS = (
    "auto",
    "clasp",
    "conflayers",
    "early_exit",
    "layer_skip",
    "moe",
    "ngram",
    "plain",
    "suffix",
    "swift",
)


@dataclass(frozen=True)
class ServerOptions:
    """How requests are taken.

    ``slots`` texts are written at once and ``queue`` more may wait. A text that is not finished after ``deadline``
    seconds (0: no limit) is ended with an error; a request may ask for less. ``grace`` seconds after the signal to
    stop what is not finished is ended too. ``max_body`` are the most bytes of a body. ``api_key`` is asked of every
    request but those for /health; "" asks for none. ``drafts`` are the drafters that a request may choose, beside
    the one that the server was started with; by default those that bring no weights. ``kv_budget`` are the most
    bytes of keys and values, 0 for no limit; with ``prefix_cache`` prompts go on from what earlier texts have left.
    ``name`` is what clients call the model.
    """

    name: str
    slots: int = 8
    queue: int = 64
    deadline: float = 600.0
    grace: float = 30.0
    max_body: int = 4 << 20
    api_key: str = ""
    drafts: tuple[str, ...] = LIGHT_DRAFTERS
    kv_budget: int = 0
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        require_types(self)
        for field, least in (
            ("slots", 1),
            ("queue", 0),
            ("deadline", 0.0),
            ("grace", 0.0),
            ("max_body", 1),
            ("kv_budget", 0),
        ):
            value = getattr(self, field)
            if not least <= value < math.inf:
                raise OptionError(f"{field} is {value}; it must be at least {least}")
        if not self.api_key.isascii():
            raise OptionError("the API key must be of ASCII characters: it travels in an HTTP header")
