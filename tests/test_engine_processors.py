"""The processors from the engine and the command line: names, texts as bad words, ends, and what is refused."""

from __future__ import annotations

import json

import pytest
from test_engine import DRAFTS, replace_eos

import selfspec
from selfspec.errors import OptionError
from selfspec.request import Request

LONG = {"max_new_tokens": 60, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tiny):
    return selfspec.load(tiny, draft="plain", dtype="float64")


@pytest.fixture(scope="module")
def plain(engine):
    return engine.generate("hello there", **LONG)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "bad_words": ["a", [5, 6]]},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "logit_bias": {65: 3.0}, "suppress_tokens": [4]},
        {"forced_tokens": {3: 9}, "begin_suppress_tokens": [1], "forced_eos_token_id": 257, "min_tokens": 5},
    ],
    ids="+".join,
)
def test_speculative_text_is_the_plain_text(engine, plain, draft, options):
    """Guards the way of every option from the request to each row."""
    alone = engine.generate("hello there", **LONG, **options)
    done = engine.generate("hello there", **LONG, **options, **draft)
    assert done.token_ids == alone.token_ids != plain.token_ids


def test_bad_words_as_text_are_banned_with_and_without_a_space(engine, plain):
    """Guards tokenisation: a word has another token after a space, and both are meant."""
    sampling = Request(bad_words=[" ab", [1, 2]]).sampling(engine.config, engine.tokenizer, 1)
    encode = engine.tokenizer.encode
    assert sampling.bad_words == (tuple(encode("ab")), tuple(encode(" ab")), (1, 2))
    pair = plain.token_ids[20:22]
    done = engine.generate("hello there", **LONG, bad_words=[pair])
    assert pair not in list(zip(done.token_ids, done.token_ids[1:], strict=False))
    letters = [c for c in plain.text if c.isascii() and c.isalnum()]
    assert letters[0] not in engine.generate("hello there", **LONG, bad_words=letters[0]).text


def test_min_tokens_holds_back_the_end(engine, plain, monkeypatch):
    """Guards the model's end-of-text ids on their way into the sampling; the default still ends there."""
    eos = plain.token_ids[4]
    monkeypatch.setattr(engine, "config", replace_eos(engine.config, eos))
    short = engine.generate("hello there", max_new_tokens=30)
    assert len(short.token_ids) <= 5
    for draft in ({}, *DRAFTS):
        done = engine.generate("hello there", max_new_tokens=30, min_tokens=12, **draft)
        assert eos not in done.token_ids[:12]


@pytest.mark.parametrize("draft", [{}, *DRAFTS])
def test_a_forced_end_is_the_last_possible_token(engine, draft):
    """Guards transformers' forced_eos_token_id, also where the context is the limit."""
    options = {"forced_eos_token_id": 257, "logit_bias": {257: -100}, **draft}
    done = engine.generate("hello there", max_new_tokens=9, **options)
    assert (len(done.token_ids), done.token_ids.index(257), done.finish_reason) == (9, 8, "stop")
    prompt = [7] * (engine.config.context_length - 6)
    done = engine.generate(prompt, max_new_tokens=50, **options)
    assert (len(done.token_ids), done.token_ids[-1], done.finish_reason) == (6, 257, "stop")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_p": 2.0}, "min_p is 2.0"),
        ({"logit_bias": {259: 1.0}}, "logit_bias has token 259; this model's tokens are 0 to 258"),
        ({"bad_words": [[300]]}, "bad_words has token 300"),
        ({"bad_words": [" "]}, "bad_words has ' '; it must be a text that is not blank"),
        ({"bad_words": 5}, "bad_words is 5; it must be a list"),
        ({"bad_words": [5]}, "bad_words is 5"),
        ({"forced_eos_token_id": 999}, "forced_tokens has token 999"),
        ({"forced_eos_token_id": 257, "max_new_tokens": 2, "forced_tokens": {1: 3}}, "give one"),
        ({"min_tokens": 300}, r"min_tokens is 300; it must be at most max_new_tokens \(256\)"),
        ({"processors": lambda tokens, logits: logits}, "processors is .*; it must be a list"),
    ],
)
def test_wrong_options_are_one_clear_error_before_anything_runs(engine, options, words):
    """Guards against options that fail in mid-text."""
    with pytest.raises(OptionError, match=words) as caught:
        engine.stream("hi", **options)
    assert "\n" not in str(caught.value)


def test_wrong_defaults_of_an_engine_are_errors_when_it_is_loaded(tiny):
    """Guards the late surprise: what the vocabulary refuses is known as soon as the model is."""
    with pytest.raises(OptionError, match="suppress_tokens has token 259"):
        selfspec.load(tiny, suppress_tokens=[259])
    bare = selfspec.Engine(selfspec.load(tiny).runtime, None, "bare")
    with pytest.raises(OptionError, match="no tokenizer; give its token ids"):
        bare.generate([5], bad_words=["a"])


def test_contradictory_constraints_end_a_stream_with_one_line(engine):
    """Guards the message: it names what contradicts, not the weights."""
    options = {"forced_tokens": {2: 5}, "suppress_tokens": [5]}
    with pytest.raises(selfspec.ConstraintError, match="new token 3 under forced_tokens and suppress_tokens"):
        engine.generate("hi", max_new_tokens=5, ignore_eos=True, **options)


def test_flags_are_the_options(tiny, engine):
    """Guards the command line: scalars, and the flags that may be given several times."""
    from click.testing import CliRunner

    from selfspec.cli.main import cli

    flags = (
        "--repetition-penalty 1.2 --presence-penalty 0.5 --frequency-penalty -0.25 --no-repeat-ngram-size 4 "
        "--logit-bias 65=2.5 --logit-bias 66=-100 --bad-word a --bad-word zz --suppress-token 7 "
        "--suppress-token 8 --min-tokens 20 --min-length 9 --min-p 0.01 --typical-p 0.95 --temperature 0.9 "
        "--seed 4 --max-new-tokens 30 --forced-eos-token-id 257 --dtype float64"
    )
    done = CliRunner().invoke(cli, ["generate", "hello there", "--model", tiny, "--json", *flags.split()])
    assert done.exit_code == 0, done.stderr
    want = engine.generate(
        "hello there",
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=-0.25,
        no_repeat_ngram_size=4,
        logit_bias={65: 2.5, 66: -100},
        bad_words=["a", "zz"],
        suppress_tokens=[7, 8],
        min_tokens=20,
        min_length=9,
        min_p=0.01,
        typical_p=0.95,
        temperature=0.9,
        seed=4,
        max_new_tokens=30,
        forced_eos_token_id=257,
    )
    assert json.loads(done.stdout)["token_ids"] == list(want.token_ids)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--logit-bias", "5"], "--logit-bias is '5'; it must be ID=BIAS, such as 11=-100"),
        (["--logit-bias", "x=1"], "--logit-bias is 'x=1'"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2"], "logit_bias has 5 twice"),
        (["--logit-bias", "-5=1"], "logit_bias has -5"),
        (["--suppress-token", "259"], "suppress_tokens has token 259"),
        (["--suppress-token", "x"], "--suppress-token"),
        (["--bad-word", ""], "bad_words has ''"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0.0"),
    ],
)
def test_wrong_flags_are_one_line(tiny, flags, says):
    """Guards every mistake that a user can make with these flags: one line, exit code 2."""
    from click.testing import CliRunner

    from selfspec.cli.main import cli

    done = CliRunner().invoke(cli, ["generate", "hello", "--model", tiny, *flags])
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert says in done.stderr
