"""The target answers prompts: in which order, with which seeds, and until when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from selfspec.errors import PromptError, SelfspecError
from selfspec.train.shards import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from selfspec.engine import Engine
    from selfspec.train.folder import Folder


class Ask(NamedTuple):
    """One text to come."""

    source: int
    temperature: float
    draw: int
    tokens: list[int]


@dataclass
class Answering:
    """A run over prompts: ``run`` adds the answers to a folder.

    Every prompt is answered once at every temperature, in an order that ``seed`` shuffles, so that the texts at any
    moment are a sample of all. With ``tokens`` the run ends when the answers have so many, those under way
    included (a text is not left out because it is long); where prompts run out before that, they are answered
    again with other random numbers, at the temperatures above 0. Each text has a seed of its own, which follows
    from ``seed`` and the text's number: neither the other texts nor an interruption change it.

    ``prompts`` are keyword arguments of `Engine.encode`; ``wrapping`` are those for all. Prompts of more than
    ``max_prompt_tokens`` are left out, and so is what the model refuses; ``left_out`` has the reasons.
    """

    engine: Engine
    prompts: Sequence[Mapping[str, Any]]
    temperatures: Sequence[float]
    seed: int = 0
    max_new_tokens: int = 256
    max_prompt_tokens: int | None = None
    tokens: int | None = None
    wrapping: Mapping[str, Any] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)

    @property
    def texts(self) -> int:
        """How many there are when every prompt has been answered once at every temperature."""
        return len(self.prompts) * len(self.temperatures)

    def run(self, folder: Folder, slots: int, draft: str) -> Iterator[Text]:
        """Add what is missing, and give it, as texts end."""
        asked: list[Ask] = []
        for index, found in self.engine.batch(self._requests(folder, asked), slots=slots, draft=draft):
            ask = asked[index]
            if isinstance(found, Exception):
                self.left_out[ask.source] = str(found)
                continue
            tokens = np.asarray([*ask.tokens, *found.token_ids], np.int32)
            text = Text(tokens, len(ask.tokens), ask.temperature, ask.source, ask.draw)
            folder.add(text)
            yield text

    def _requests(self, folder: Folder, asked: list[Ask]) -> Iterator[dict[str, Any]]:
        """Of what the folder lacks; ``asked`` remembers them in their order."""
        for source, temperature, draw in self._order():
            if self.tokens is not None and folder.answer_tokens >= self.tokens:
                return
            number = folder.number(source, temperature, draw)
            if number in folder or source in self.left_out:
                continue
            if (tokens := self._encoded(source)) is None:
                continue
            asked.append(Ask(source, temperature, draw, tokens))
            yield {
                "prompt": tokens,
                "temperature": temperature,
                "seed": seed_of(self.seed, number),
                "max_new_tokens": self.max_new_tokens,
            }

    def _order(self) -> Iterator[tuple[int, float, int]]:
        """(source, temperature, draw) of all texts; without end where there is a target of tokens."""
        draw = 0
        temperatures = list(self.temperatures)
        while temperatures and len(self.left_out) < len(self.prompts):
            shuffled = np.random.default_rng((self.seed, draw)).permutation(len(self.prompts) * len(temperatures))
            for pair in shuffled:
                source, index = divmod(int(pair), len(temperatures))
                yield source, temperatures[index], draw
            if self.tokens is None:
                return
            draw += 1
            temperatures = [value for value in temperatures if value > 0]

    def _encoded(self, source: int) -> list[int] | None:
        """The tokens of a prompt, or None if it is left out."""
        most = self.max_prompt_tokens
        try:
            tokens = self.engine.encode(**self.prompts[source], **self.wrapping)
            if most is not None and len(tokens) > most:
                raise PromptError(f"the prompt has {len(tokens)} tokens, more than the {most} of max_prompt_tokens")
        except SelfspecError as error:
            self.left_out[source] = str(error)
            return None
        return tokens


def seed_of(seed: int, number: int) -> int:
    """The seed of text ``number``, below 2^32."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
