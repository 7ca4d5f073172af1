"""One test per bug of published engines, from prompt to text: vocabularies, ends, threads, model objects.

docs/bugs.md lists them all; test_public_bugs.py has those of the loop.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from tiny_folder import write_model

import selfspec
from selfspec.drafters.scripted import Scripted, ScriptedOptions
from selfspec.request import Request
from selfspec.types import Sampling

DRAFTS = [
    {"draft": "ngram", "adaptive": False, "gamma": 5},
    {"draft": "early_exit", "exit_layer": 3, "gamma": 3},
    {"draft": "early_exit", "exit_layer": 2, "gamma": 2, "siblings": 2},
]
LONG = {"max_new_tokens": 80, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tiny):
    return selfspec.load(tiny, draft="plain", dtype="float64")


def test_padded_rows_of_the_head_are_tokens_like_any_other(tmp_path, monkeypatch):
    """Transformers #45307: padded heads (152,064 rows against 151,936) were refused, then crashed."""
    engine = selfspec.load(write_model(tmp_path / "padded", vocab_size=320), draft="plain", dtype="float64")
    known = engine.tokenizer.vocab_size
    plain = engine.generate("hello there", **LONG)
    assert known < max(plain.token_ids) < 320
    assert plain.text == engine.tokenizer.decode(plain.token_ids)
    last = plain.token_ids[-1]
    for draft in DRAFTS:
        done = engine.generate("hello there", **LONG, **draft)
        assert (done.token_ids, done.text) == (plain.token_ids, plain.text)
        banned = engine.generate([max(plain.token_ids), 5], suppress_tokens=[last, 319], **LONG, **draft)
        assert not {last, 319} & set(banned.token_ids)
    logits = engine.runtime.logits

    def without_padding(hidden):
        rows = logits(hidden)
        rows[:, known:] = -np.inf
        return rows

    monkeypatch.setattr(engine.runtime, "logits", without_padding)
    assert engine.generate("hello there", **LONG).token_ids != plain.token_ids


def test_a_model_without_an_end_of_text_token_is_drafted_for_too(tmp_path):
    """Transformers PR #27775: look-up crashed where there was no end-of-text token."""
    folder = Path(write_model(tmp_path / "endless"))
    for name, key in (("config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):
        settings = json.loads((folder / name).read_text())
        del settings[key]
        (folder / name).write_text(json.dumps(settings))
    engine = selfspec.load(folder, draft="plain", dtype="float64")
    assert engine.config.eos_token_ids == ()
    plain = engine.generate("hello hello", max_new_tokens=60, min_tokens=20)
    for draft in DRAFTS:
        done = engine.generate("hello hello", max_new_tokens=60, min_tokens=20, **draft)
        assert (done.token_ids, done.finish_reason) == (plain.token_ids, "length")


@pytest.mark.parametrize("draft", DRAFTS)
def test_ignoring_the_end_goes_on_through_ends_that_a_draft_holds(engine, monkeypatch, draft):
    """Look-up cuts its candidates at an end-of-text token (transformers): that must not end a text that goes on.

    Where ends count, the text stops at that very token, also when it is the only or the last one allowed.
    """
    prompt = engine.tokenizer.encode_chat([{"role": "user", "content": "hello there"}])
    plain = engine.generate(prompt, **LONG)
    end = max(set(plain.token_ids), key=plain.token_ids.count)
    first = plain.token_ids.index(end)
    monkeypatch.setattr(engine, "config", replace(engine.config, eos_token_ids=(end,)))
    again = [*prompt, *plain.token_ids[:40]]  # the ends are in the prompt, so that they are copied
    assert engine.generate(again, **LONG, **draft).token_ids == engine.generate(again, **LONG).token_ids
    assert engine.generate(prompt, **LONG, **draft).token_ids == plain.token_ids
    stopped = engine.generate(prompt, max_new_tokens=first + 1, **draft)
    assert (stopped.token_ids, stopped.finish_reason) == (plain.token_ids[: first + 1], "stop")
    start = [*prompt, *plain.token_ids[:first]]
    only = engine.generate(start, max_new_tokens=1, **draft)
    assert (only.token_ids, only.finish_reason, only.text) == ((end,), "stop", "")


def test_threads_may_draft_at_different_depths(engine):
    """Transformers' early exit sets the depth in the model's config: threads change each other's model."""
    plain = engine.generate("hello there", **LONG).token_ids

    def drafted(depth):
        return engine.generate("hello there", draft="early_exit", exit_layer=depth, gamma=depth, **LONG).token_ids

    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(drafted, (1, 2, 3))) == {plain}


def test_every_field_of_sampling_can_be_asked_for(engine):
    """VLLM #38202, #42744, SGLang #26330: sampling parameters are dropped without a word under speculation."""
    asked = {
        "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9, "repetition_penalty": 1.1,
        "presence_penalty": 0.1, "frequency_penalty": 0.2, "no_repeat_ngram_size": 4, "min_length": 3,
        "min_tokens": 2, "logit_bias": ((1, 2.0),), "bad_words": ((7, 8),), "forced_tokens": ((3, 4),),
        "suppress_tokens": (5,), "begin_suppress_tokens": (6,), "processors": (max,),
        "coupled": True,
    }  # fmt: skip
    others = {"eos_token_ids", "constraint"}  # of the model; of schemas and grammars (tests/test_grammar.py)
    assert set(asked) == {f.name for f in fields(Sampling)} - others
    for draft in ({}, *DRAFTS):
        made = engine.stream("hi", **asked, **draft)._generation._sampling
        assert made == Sampling(**asked, eos_token_ids=engine.config.eos_token_ids)
    assert {f.name for f in fields(Sampling)} - others < {f.name for f in fields(Request)}


def test_a_wrong_draft_token_is_an_error_before_it_reaches_the_model(engine):
    """Padded vocabularies (transformers #45307): a drafter can name an id without an embedding in the target."""
    drafter = Scripted(ScriptedOptions(script=lambda tokens, gamma: [engine.config.vocab_size]), engine.config)
    with pytest.raises(selfspec.OptionError, match="tokens are 0 to 258"):
        engine.generate("hi", draft=drafter)
