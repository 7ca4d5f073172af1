"""Look-up drafts for other engines: they see tokens only, and what they draft must be what our own loop drafts."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from doubles import run, tiny_runtime

import selfspec
from selfspec.drafters.onlooker import Onlookers
from selfspec.errors import OptionError

PHRASE = [7, 8, 9, 10, 11, 12]
PROMPT = [*PHRASE, 20, *PHRASE, 21, 7, 8]


def decoded(answer, drafts):
    """An engine that would say ``answer``: asks for drafts, accepts what is right, adds a token of its own."""
    tokens, drafted, accepted = list(PROMPT), 0, 0
    end = len(PROMPT) + len(answer)
    said = [*PROMPT, *answer]
    tokens.append(said[len(tokens)])
    while len(tokens) < end:
        draft = drafts(tokens)
        drafted += len(draft)
        right = next((i for i, t in enumerate(draft) if said[len(tokens) :][i : i + 1] != [t]), len(draft))
        accepted += right
        tokens += said[len(tokens) : len(tokens) + right + 1]
    return tokens, drafted, accepted


@pytest.mark.parametrize("draft", ["suffix", "ngram", "suffix>ngram"])
def test_llama_cpp_gets_drafts_that_hold(draft):
    """llama-cpp-python calls it with an array of all tokens, and wants int32."""
    model = selfspec.llamacpp.draft(draft, row_price=0.0)
    answer = [9, 10, 11, 12, 21, 7, 8, 9, 10, 11, 12, 30]

    def ask(tokens):
        found = model(np.asarray(tokens, np.intc))
        assert found.dtype == np.intc
        return found.tolist()

    tokens, drafted, accepted = decoded(answer, ask)
    assert tokens == [*PROMPT, *answer]
    assert accepted >= 6
    assert model.accepted <= accepted <= drafted
    assert ask([40, 41, 42, 40, 41]) == [42, 40, 41, 42, 40, 41, 42][: len(ask([40, 41, 42, 40, 41]))], "a new text"


def test_a_prediction_is_drafted_from():
    model = selfspec.llamacpp.draft("suffix", prediction=[50, 51, 52, 53], row_price=0.0)
    assert model(np.asarray([1, 2, 3], np.intc)).tolist() == [50, 51, 52, 53]


def test_turns_of_a_chat():
    """A turn goes on from the text before: what it adds is no verdict on drafts, its prediction may be another."""
    model = selfspec.llamacpp.draft("suffix", row_price=0.0)
    first = model(np.asarray(PROMPT, np.intc)).tolist()
    assert first[:2] == [9, 10]
    turn = [*PROMPT, 40, *range(60, 61 + len(first))]
    model(np.asarray(turn, np.intc))
    assert (model.drafted, model.accepted) == (0, 0)
    model.prediction = [70, 71, 72, 73]
    assert model(np.asarray([*turn, 80, 81], np.intc)).tolist() == [70, 71, 72, 73]
    model(np.asarray([*turn, 80, 81, 70, 71, 5], np.intc))
    assert (model.drafted, model.accepted) == (4, 2)


def test_drafts_that_do_not_pay_are_not_made():
    cheap, dear = (Onlookers("suffix", 100, row_price=price).watch(PROMPT) for price in (0.0, 0.9))
    assert cheap.draft(PROMPT)
    assert not dear.draft(PROMPT)


def test_onlookers_learn_what_our_own_loop_learns():
    """The same text shown from outside is drafted for with the same tokens, so as many of them hold."""
    runtime = tiny_runtime()
    rounds = []
    options = {"adaptive": False, "gamma": 4}
    text = run(
        runtime,
        [[1, 2, 3, 1, 2, 3, 1, 2]],
        "ngram",
        options,
        new_tokens=40,
        each_round=lambda _context, _texts, round_: rounds.append(round_),
    )
    theirs = Onlookers("ngram", runtime.config.vocab_size, **options)
    tokens = text[0].tokens
    at = text[0].prompt_length + 1
    watched = theirs.watch(tokens[:at])
    total = [0, 0]
    while at < len(tokens):
        draft = watched.draft(tokens[:at], len(tokens) - at - 1)
        right = next((i for i, token in enumerate(draft) if tokens[at + i] != token), len(draft))
        total[0] += len(draft)
        total[1] += right
        at += right + 1
    commits = [c for r in rounds for c in r.commits]
    assert total == [sum(c.drafted for c in commits), sum(c.accepted for c in commits)]


def config(**model):
    about = SimpleNamespace(max_model_len=40, hf_config=SimpleNamespace(eos_token_id=3), get_vocab_size=lambda: 100)
    about.__dict__.update(model)
    return SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=3), model_config=about)


def test_vllm_gets_lists_for_every_row_wherever_it_has_moved(monkeypatch):
    """Rows move, prompts come in pieces (nothing sampled), and a full row gets nothing."""
    monkeypatch.setenv("SELFSPEC_VLLM_ROW_PRICE", "0")
    proposer = selfspec.vllm.Proposer(config())
    proposer.load_model(None)
    ids = np.zeros((4, 40), np.int32)
    first, second = [*PROMPT, 9], [30, 31, 32, 33, 30, 31, 32]
    ids[0, : len(first)], ids[1, : len(second)], ids[2, :40] = first, second, np.arange(40)
    counts = np.array([len(first), len(second), 40, 5])
    assert proposer.propose([[9], [32], [1], []], counts, ids) == [[10, 11, 12], [33, 30, 31], [], []]
    moved = list(proposer._rows.values())
    ids[[0, 1]] = ids[[1, 0]]
    ids[0, len(second) : len(second) + 2], ids[1, len(first)] = [33, 30], 10
    counts = np.array([len(second) + 2, len(first) + 1])
    assert proposer.propose([[33, 30], [10]], counts, ids, slot_mappings=None) == [[31, 32, 33], [11, 12, 21]]
    assert list(proposer._rows.values()) == moved[::-1]
    assert (moved[1].accepted, moved[0].accepted) == (2, 1)


def test_what_cannot_be_drafted_from_outside_is_refused(monkeypatch):
    for draft, says in (("early_exit", "runs a model"), ("ngram:siblings=2", "leave siblings"), ("no", "one of")):
        with pytest.raises(OptionError, match=says):
            selfspec.llamacpp.draft(draft)
    with pytest.raises(OptionError, match="row_price"):
        selfspec.llamacpp.draft("ngram", row_price=-1)
    monkeypatch.setenv("SELFSPEC_VLLM_ROW_PRICE", "much")
    with pytest.raises(OptionError, match="must be a number"):
        selfspec.vllm.Proposer(config())


def test_no_engine_is_imported_before_it_is_asked_for():
    code = (
        "import sys, selfspec; selfspec.llamacpp.draft('ngram'); selfspec.vllm.Proposer; selfspec.hf.FOLDER; "
        "sys.exit(bool({'torch', 'transformers', 'vllm', 'llama_cpp', 'openvino'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
