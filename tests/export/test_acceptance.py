"""α along texts that are there: the rounds of an engine that wrote them, whatever our own model would have said."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import selfspec
from selfspec.cli.main import cli
from selfspec.errors import OptionError, PromptError
from selfspec.export.acceptance import acceptance_along, read_texts
from selfspec.export.drafts import export_draft

GAMMA = 3
DRAFT = {"draft": "early_exit", "exit_layer": 3, "gamma": GAMMA}
PROMPTS = ([65, 66, 67, 68], [97, 98], [40, 41, 42] * 3)
PLAINLY = {"temperature": 0.0, "ignore_eos": True}


def by_definition(guesses, prompt, answer):
    """Drafted, accepted and rounds along a text; ``guesses`` says what the draft would, alone, after any tokens."""
    drafted = accepted = rounds = 0
    at = 1  # the prompt's pass has given the first token
    while at < len(answer):
        most = min(GAMMA, len(answer) - at - 1)
        guess = guesses([*prompt, *answer[:at]], most) if most else ()
        right = next((i for i, token in enumerate(guess) if token != answer[at + i]), len(guess))
        drafted, accepted, rounds = drafted + len(guess), accepted + right, rounds + 1
        at += right + 1
    return drafted, accepted, rounds


def test_alpha_along_texts_is_what_the_draft_alone_would_have_had_right(tiny, tmp_path):
    """Half of every text is the model's own answer, the other half tokens that it would not say."""
    export_draft(tiny, "early_exit:exit_layer=3", "hf", tmp_path / "draft", tokens=0)
    engine, alone = selfspec.load(tiny, threads=1, **DRAFT), selfspec.load(tmp_path / "draft", threads=1)

    def guesses(tokens, most):
        return alone.generate(tokens, max_new_tokens=most, draft="plain", **PLAINLY).token_ids

    random, written = np.random.default_rng(0), []
    for prompt in PROMPTS:
        own = list(engine.generate(prompt, max_new_tokens=24, **PLAINLY).token_ids)
        swapped = random.integers(0, 250, 12).tolist()
        written.append((prompt, [*own[:12], *swapped, *guesses([*prompt, *own[:12], *swapped], 6)]))
    found = acceptance_along(engine, written)
    drafted, accepted, rounds = np.sum([by_definition(guesses, *text) for text in written], axis=0)
    assert 0 < accepted < drafted
    assert (found.drafted, found.alpha) == (drafted, accepted / drafted)
    assert found.mean_accepted_length == sum(len(answer) - 1 for _, answer in written) / rounds
    assert (found.prompts, found.max_new_tokens, found.source) == (3, 30, "given texts")


def test_along_its_own_answers_alpha_is_its_own(tiny):
    engine = selfspec.load(tiny, threads=1, **DRAFT)
    done = [engine.generate(prompt, max_new_tokens=40, **PLAINLY) for prompt in PROMPTS]
    found = acceptance_along(engine, [(p, d.token_ids) for p, d in zip(PROMPTS, done, strict=True)])
    assert found.drafted == sum(d.stats.drafted for d in done)
    assert found.alpha == sum(d.stats.accepted for d in done) / found.drafted


def test_the_command_measures_along_a_file(tiny, tmp_path):
    """Texts and token ids are the same, and α follows the file."""
    texts = [{"prompt": "ABCD", "answer": "xyzzy xyzzy"}, {"prompt": [97, 98], "answer": [5, 6, 7, 8]}]
    engine = selfspec.load(tiny, threads=1, **DRAFT)
    ids = [{name: engine.encode(text, chat=False) for name, text in texts[0].items()}, texts[1]]
    found = []
    for i, rows in enumerate((texts, ids)):
        file = tmp_path / f"{i}.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
        asked = [
            "export",
            tiny,
            "--draft",
            "early_exit:exit_layer=3:gamma=3",
            "--format",
            "hf",
            "--along",
            str(file),
        ]
        done = CliRunner().invoke(cli, [*asked, "--out", str(tmp_path / f"out{i}"), "--json"])
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.stdout)["acceptance"])
    assert found[0] == found[1]
    assert found[0]["drafted"] == acceptance_along(engine, [tuple(row.values()) for row in ids]).drafted
    done = CliRunner().invoke(cli, [*asked, "--out", str(tmp_path / "out")])
    assert "2 given texts, at most 11 greedy tokens each" in done.output


def test_what_is_no_text_is_refused(tiny, tmp_path):
    file = tmp_path / "texts.jsonl"
    for lines, says in (
        ("", "is empty"),
        ("[1]", "line 1 of .* must have a prompt and an answer"),
        ('{"prompt": "a", "answer": 3}', "must have a prompt and an answer"),
        ("\n{", "line 2 of .* is not JSON"),
    ):
        file.write_text(lines)
        with pytest.raises(OptionError, match=says):
            read_texts(file)
    with pytest.raises(OptionError, match="cannot be read"):
        read_texts(tmp_path / "none")
    engine = selfspec.load(tiny, threads=1, max_new_tokens=4, **DRAFT)
    with pytest.raises(OptionError, match="an answer of the given texts is empty"):
        acceptance_along(engine, [([1, 2], "")])
    with pytest.raises(OptionError, match="more than this model's context of 4096"):
        acceptance_along(engine, [([1, 2], [5] * 4095)])
    with pytest.raises(PromptError, match="outside this model's vocabulary"):
        acceptance_along(engine, [([1, 2], [5, 999])])
