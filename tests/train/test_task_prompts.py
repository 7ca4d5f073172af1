"""bench/task_prompts.py: prompts about texts that a model has written."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import selfspec
from selfspec.train.shards import Text, write_shard

SCRIPT = Path(__file__).parents[2] / "bench" / "task_prompts.py"


def test_prompts_are_about_the_answers_and_a_seed_gives_the_same(tiny, tmp_path):
    """Guards the script that the prompts of the first head came from: passages are answers, short ones are left."""
    main = runpy.run_path(str(SCRIPT))["main"]
    engine = selfspec.load(tiny)
    described = {
        "format": 1, "model": {"name": engine.name, "fingerprint": engine.fingerprint},
        "vocab_size": engine.config.vocab_size, "eos_token_ids": [257], "special_ids": [256, 257, 258],
        "temperatures": [0.0],
    }  # fmt: skip
    (tmp_path / "data.json").write_text(json.dumps(described))
    tokens = [engine.tokenizer.encode(text) for text in ("ab", "The river is long, and its water is cold.")]
    arguments = [
        "--data",
        str(tmp_path),
        "--model",
        str(tiny),
        "--out",
        str(tmp_path / "out.jsonl"),
        "--count",
        "9",
    ]

    def asked():
        done = CliRunner().invoke(main, arguments)
        return done, (tmp_path / "out.jsonl").read_text() if done.exit_code == 0 else None

    write_shard(tmp_path, [Text(np.asarray([1, *tokens[0]], np.int32), 1, 0.0, 0)])
    done, _ = asked()
    assert done.exit_code == 2
    assert "no answer of 20 tokens or more" in done.output
    write_shard(tmp_path, [Text(np.asarray([1, *own], np.int32), 1, 0.0, n) for n, own in enumerate(tokens)])
    done, found = asked()
    assert done.exit_code == 0, done.output
    prompts = [json.loads(line)["prompt"] for line in found.splitlines()]
    assert len(prompts) == 9
    assert all("The river is long, and its water is cold." in prompt for prompt in prompts)
    assert asked()[1] == found


@pytest.mark.embedded
def test_articles_questions_and_german_come_from_the_folder(tmp_path):
    """Guards what the kinds are told by: a prompt that asks, a prompt that wants German, and joined answers."""
    tokenizer = selfspec.load("smollm2-135m", draft="plain").tokenizer
    told_of = runpy.run_path(str(SCRIPT))["Told"]
    talk = (
        (
            "Where do rivers end?",
            "They end in the sea, where their water is mixed with the salt water of the tides, twice a day.",
        ),
        (
            "Say in German that the river is cold.",
            "Der Fluss ist kalt, und das Wasser ist heute sehr klar und tief.",
        ),
    )
    texts = []
    for number, (asked, said) in enumerate(talk):
        prompt = tokenizer.encode_chat([{"role": "user", "content": asked}])
        answer = tokenizer.encode(said, add_special_tokens=False)
        texts.append(Text(np.asarray([*prompt, *answer], np.int32), len(prompt), 0.0, number))
    described = {
        "format": 1, "model": {"name": "m", "fingerprint": "f"}, "vocab_size": 49152, "eos_token_ids": [2],
        "special_ids": [0, 1, 2], "temperatures": [0.0],
    }  # fmt: skip
    (tmp_path / "data.json").write_text(json.dumps(described))
    write_shard(tmp_path, texts)
    told = told_of.of(str(tmp_path), tokenizer, 200)
    assert (told.passages, told.questions, told.german) == ([talk[0][1]], [talk[0][0]], [talk[1][1]])
    prompts = list(told.prompts(300, 3, np.random.default_rng(0)))
    german = [prompt for prompt in prompts if talk[1][1] in prompt]
    assert 10 <= len(german) <= 60
    assert all("German" in prompt for prompt in german)
    assert any(prompt.endswith(talk[0][0]) for prompt in prompts)
    assert {prompt.count(talk[0][1]) for prompt in prompts if prompt.startswith("Summarize: ")} == {1, 2, 3}
