"""Prompts that the model writes itself: a double of the engine says what they are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import selfspec
from selfspec import OptionError
from selfspec.journal import opened
from selfspec.train.answers import seed_of
from selfspec.train.self_prompts import SelfPrompts, built_in_beginnings, key

BEGINNINGS = ["Tell me", "Why is"]


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return selfspec.load(tiny).tokenizer


class Double:
    """Answers candidates, out of order, with what is written for their number; else with words of their own."""

    name = "double"
    fingerprint = "f"
    runtime = SimpleNamespace(name="r", precision="p")

    def __init__(self, tokenizer, said=()):
        self.tokenizer, self.said, self.asked = tokenizer, dict(said), []
        self._numbers = {seed_of(5, number): number for number in range(400)}

    def batch(self, requests, slots, draft):
        waiting = []
        for index, request in enumerate(requests):
            number = self._numbers[request["seed"]]
            self.asked.append((number, self.tokenizer.decode(request["prompt"], False)))
            waiting.append((index, self._completion(number)))
            if len(waiting) == 3:
                yield from waiting[::-1]
                waiting = []
        yield from waiting[::-1]

    def _completion(self, number):
        said = self.said.get(number, f" a thing of number {number}?<|im_end|>")
        ids = self.tokenizer.encode(said, add_special_tokens=False)
        ended = ids[-1] in self.tokenizer.eos_token_ids
        text = self.tokenizer.decode(ids)
        return SimpleNamespace(token_ids=ids, text=text, finish_reason="stop" if ended else "length")


SAID = {
    1: " more of it<|im_end|>",
    2: " that so",  # cut by its length
    3: "  More, of it!<|im_end|>",  # with "Tell me" the same as 1
    4: "Too short<|im_end|>",
    5: " and so on and so on and so on and so on<|im_end|>",
    6: " this cut<|endoftext|>by a special token",
    9: " taken already<|im_end|>",
}


def write(count, double, path, stop=None):
    writer = SelfPrompts(double, BEGINNINGS, seed=5, taken={key("TELL ME taken already.")})
    with opened(path, writer.identity) as journal:
        for done, _ in enumerate(writer.write(count, journal, 4), 1):
            if done == stop:
                break
        return [(number, journal[number]["prompt"]) for number in writer.chosen(count, journal)]


def test_prompts_are_what_the_model_says_where_the_user_speaks(tokenizer, tmp_path):
    """Guards the frame, beginnings in turn, filters and duplicates; and that growing or resuming changes none."""
    double = Double(tokenizer, SAID)
    found = write(6, double, tmp_path / "a")
    assert found == [
        (0, "a thing of number 0?"),
        (1, "Tell me more of it"),
        (6, "Tell me this cut"),
        (7, "Why is a thing of number 7?"),
        (8, "a thing of number 8?"),
        (10, "Why is a thing of number 10?"),
    ]
    frame = "<|im_start|>user\n"
    begun = ["", "Tell me", "Why is", "Tell me", "", "Why is", "Tell me", "Why is", "", "Tell me", "Why is"]
    assert sorted(double.asked)[:11] == [(number, frame + words) for number, words in enumerate(begun)]
    more = write(9, Double(tokenizer, SAID), tmp_path / "b")
    assert more[:6] == found
    assert write(9, Double(tokenizer, SAID), tmp_path / "a") == more
    write(1, Double(tokenizer, SAID), tmp_path / "gap", stop=2)  # 2 and 1 are there, and 0 is not
    assert write(1, Double(tokenizer, SAID), tmp_path / "gap") == found[:1]
    for stop in (1, 4, 8):
        write(9, Double(tokenizer, SAID), tmp_path / f"stop{stop}", stop)
        again = Double(tokenizer, SAID)
        assert write(9, again, tmp_path / f"stop{stop}") == more
        assert 0 < len(again.asked) < 20


def test_models_that_write_no_prompts_are_named(tokenizer, tmp_path):
    """Guards against running for ever, and against models without a user's turn."""
    silent = Double(tokenizer, dict.fromkeys(range(400), "x<|im_end|>"))
    with pytest.raises(OptionError, match="double wrote 0 usable prompts"):
        write(2, silent, tmp_path / "a")
    assert len(silent.asked) < 300
    silent.tokenizer = None
    with pytest.raises(OptionError, match="no chat template"):
        write(2, silent, tmp_path / "b")


def test_built_in_beginnings_are_beginnings():
    """Guards the file: one a line, each once, none that is a whole prompt or ends in a space."""
    found = built_in_beginnings()
    assert len(found) == len({*found}) > 80
    assert all(line == line.strip() and line for line in found)
