"""The target writes prompts itself: it goes on from where its chat template lets the user speak (Magpie)."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError
from selfspec.train.answers import seed_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from selfspec.engine import Engine
    from selfspec.journal import Journal
    from selfspec.request import Completion

TEMPERATURE = 1.0
TOP_P = 0.9  # the tail of a small model's first tokens leads into noise
MAX_TOKENS = 256

_FEWEST_WORDS = 3
_TRIES = 20  # candidates for a prompt, before the model is said to write none
_MARK = "HERE-THE-USER-SPEAKS"


@dataclass
class SelfPrompts:
    """Prompts of a chat model, sampled from its template's beginning of a user's turn (arXiv 2406.08464).

    A model that was tuned on chats has learned what users say, too. Every fourth candidate begins freely, the
    others with one of ``beginnings`` in turn, which keeps the kinds of tasks apart: small models ask for lists
    most of the time. A candidate is a prompt if the model ended it, it has at least three words, it is not a loop,
    and no other one (nor one of ``taken``) has the same letters and digits. Each has a seed of its own, so the
    first N prompts are the same whatever was interrupted, and however many are asked for.
    """

    engine: Engine
    beginnings: Sequence[str]
    seed: int = 0
    system: str | None = None
    taken: Set[str | None] = frozenset()
    _frame: tuple[str, str] = field(init=False)

    def __post_init__(self) -> None:
        tokenizer = self.engine.tokenizer
        if tokenizer is None or not tokenizer.has_chat_template:
            raise OptionError(f"{self.engine.name} has no chat template to write prompts by itself; give --prompts")
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        text = tokenizer.render([*system, {"role": "user", "content": _MARK}], add_generation_prompt=False)
        before, found, after = text.partition(_MARK)
        if not found:
            raise OptionError(
                f"the chat template of {self.engine.name} does not show what users say; give --prompts"
            )
        ids = tokenizer.encode(after, add_special_tokens=False)
        self._frame = (before, tokenizer.decode(ids).strip())

    @property
    def identity(self) -> dict[str, Any]:
        """What candidates must share to stand in one journal."""
        digest = hashlib.sha256("\n".join(self.beginnings).encode()).hexdigest()
        runtime = self.engine.runtime
        return {
            "model": [self.engine.fingerprint, runtime.name, runtime.precision],
            "seed": self.seed,
            "system": self.system,
            "beginnings": digest,
        }

    def write(self, count: int, journal: Journal, slots: int) -> Iterator[int]:
        """Sample until ``journal`` has ``count`` prompts; gives how many there are, after every candidate.

        Raises OptionError if the model writes too few.
        """
        kinds = {key(journal[number]["prompt"]) for number in journal} - {None} - self.taken
        last = max(journal, default=-1)
        asked: list[int] = []

        def requests() -> Iterator[dict[str, Any]]:
            number = -1
            # no gap may stay behind: which prompts come first would depend on it
            while len(kinds) < count or number < last:
                number += 1
                if number > _TRIES * (count + 10):
                    raise OptionError(
                        f"{self.engine.name} wrote {len(kinds)} usable prompts in {number} tries; give --prompts"
                    )
                if number not in journal:
                    asked.append(number)
                    yield self._request(number)

        for index, found in self.engine.batch(requests(), slots=slots, draft="plain"):
            if isinstance(found, Exception):
                raise found
            number = asked[index]
            prompt = self._prompt(number, found)
            journal.add(number, {"prompt": prompt, "beginning": self._beginning(number)})
            if (kind := key(prompt)) is not None and kind not in self.taken:
                kinds.add(kind)
            yield len(kinds)

    def chosen(self, count: int, journal: Journal) -> list[int]:
        """The numbers of the first ``count`` prompts of a journal that `write` filled."""
        seen: set[str | None] = {None, *self.taken}
        found: list[int] = []
        for number in sorted(journal):
            kind = key(journal[number]["prompt"])
            if kind not in seen and len(found) < count:
                seen.add(kind)
                found.append(number)
        return found

    def _beginning(self, number: int) -> str:
        freely = number % 4 == 0 or not self.beginnings
        return "" if freely else self.beginnings[(number - number // 4 - 1) % len(self.beginnings)]

    def _request(self, number: int) -> dict[str, Any]:
        assert self.engine.tokenizer is not None
        before, stop = self._frame
        text = before + self._beginning(number)
        return {
            "prompt": self.engine.tokenizer.encode(text, add_special_tokens=False),
            "temperature": TEMPERATURE,
            "top_p": TOP_P,
            "seed": seed_of(self.seed, number),
            "max_new_tokens": MAX_TOKENS,
            "stop": (stop,) if stop else (),
        }

    def _prompt(self, number: int, found: Completion) -> str | None:
        """What the user says, or None if it is no prompt."""
        tokenizer = self.engine.tokenizer
        assert tokenizer is not None
        # some templates end a user's turn with a special token that does not end a text
        end = next((i for i, token in enumerate(found.token_ids) if token in tokenizer.special_ids), None)
        if end is None and found.finish_reason == "length":
            return None
        said = found.text if end is None else tokenizer.decode(found.token_ids[:end])
        prompt = (self._beginning(number) + said).strip()
        return prompt if _is_sensible(prompt) else None


def built_in_beginnings() -> list[str]:
    """How prompts of many tasks begin, in English."""
    text = files(__package__).joinpath("beginnings.txt").read_text(encoding="utf-8")
    return text.splitlines()


def key(prompt: str | None) -> str | None:
    """What two prompts share that differ in case, spaces and punctuation only."""
    return None if prompt is None else re.sub(r"[\W_]+", "", prompt.casefold())


def _is_sensible(prompt: str) -> bool:
    words = prompt.split()
    runs = Counter(zip(words, words[1:], words[2:], strict=False))
    is_loop = max(runs.values(), default=0) > 2 + len(words) // 50
    return len(words) >= _FEWEST_WORDS and "\N{REPLACEMENT CHARACTER}" not in prompt and not is_loop
