"""Structured output: what a grammar allows, with every draft the text and the law of plain decoding."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from doubles import run
from lossless_table import CHAINS, NEW, PROMPT, drafter
from wild_drafters import SIZE

import selfspec
from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.errors import ConstraintError, OptionError
from selfspec.grammar import Grammars
from selfspec.loading import has_native
from selfspec.measure.laws import loop_law
from selfspec.measure.toy import MarkovRuntime
from selfspec.reference import oracle
from selfspec.sampling import Chance
from selfspec.types import Prefix, Sampling

EXACT = {"threads": 1} if has_native() else {"dtype": "float64"}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["red", "green"]},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "kind", "ok"],
    "additionalProperties": False,
}


MULTIPLYING = {
    "allOf": [
        {"anyOf": [{"type": "object", "properties": {f"p{i}{j}": {"type": "string"}}} for j in range(4)]}
        for i in range(6)
    ]
}


@pytest.fixture(scope="module")
def engine(tiny):
    return selfspec.load(tiny, max_new_tokens=200, **EXACT)


class Steps:
    """Allows ``(last token + 1 or + 2) % size``; a draft is told ``lie`` instead. Keeps the target's calls."""

    def __init__(self, size, lie=(1, 2)):
        self.size, self.lie, self.calls = size, lie, []

    def flags(self, prefix, steps):
        found = np.zeros(self.size, dtype=bool)
        found[[(prefix.tokens[-1] + step) % self.size for step in steps]] = True
        return found

    def allowed(self, prefix):
        self.calls.append(prefix.tokens)
        return self.flags(prefix, (1, 2))

    @property
    def for_drafts(self):
        return Guessing(self)


class Guessing:
    def __init__(self, steps):
        self.steps, self.for_drafts = steps, self

    def allowed(self, prefix):
        return self.steps.flags(prefix, self.steps.lie) if self.steps.lie else None

    def legal(self, prefix, tokens):
        return len(tokens)

    def forced(self, prefix):
        return [(prefix.tokens[-1] + 1) % self.steps.size]  # which may well be wrong


@pytest.mark.parametrize("name", CHAINS)
def test_a_grammar_sees_exactly_the_calls_of_plain_decoding(name):
    """Guards idea 4: left to right, only while drafts are accepted, and nothing is rolled back."""
    runtime = MarkovRuntime(SIZE, num_layers=5, seed=1)
    free = Steps(SIZE)
    plain = oracle(runtime, PROMPT, NEW, Chance(0), Sampling(constraint=free))
    seen = Steps(SIZE)
    options = drafter(name, runtime, [PROMPT + plain], 6)
    (text,) = run(runtime, [PROMPT], *options, new_tokens=NEW, sampling=Sampling(constraint=seen))
    assert text.tokens[len(PROMPT) :] == plain
    assert seen.calls == free.calls == [(*PROMPT, *plain[:i]) for i in range(NEW)]


def test_a_grammar_is_not_asked_for_rows_that_a_block_would_look_at():
    """Guards the rule where drafts are sampled: no row is judged that is not committed."""
    runtime, seen = MarkovRuntime(SIZE, num_layers=5, seed=1), Steps(SIZE)
    options = {"exit_layer": 1, "gamma": 5}
    sampling = Sampling(1.0, constraint=seen)
    (text,) = run(runtime, [PROMPT], "early_exit", options, new_tokens=40, sampling=sampling)
    assert seen.calls == [tuple(text.tokens[:n]) for n in range(len(PROMPT), len(text.tokens))]


@pytest.mark.parametrize("lie", [(1, 2), (1,), (0, 2), ()], ids=str)
@pytest.mark.parametrize("draft", ["early_exit", "ngram"])
def test_drafts_under_any_grammar_have_the_law_of_plain_decoding(draft, lie):
    """Guards the law exactly, also where drafts were told another grammar, or none, or a wrong forced token."""
    runtime = MarkovRuntime()
    size = runtime.config.vocab_size
    own = {"early_exit": {"exit_layer": 2, "gamma": 2}, "ngram": {"gamma": 3, "adaptive": False}}[draft]
    sampling = Sampling(1.0, constraint=Steps(size, lie))
    made = {
        name: loop_law(runtime, ([1], 4), sampling, drafters.create(name, runtime.config, options))
        for name, options in (("plain", {}), (draft, own))
    }
    assert len(made["plain"]) == 16
    assert made[draft] == {key: pytest.approx(p, abs=1e-12) for key, p in made["plain"].items()}


DRAFTS = ["plain", "suffix", "ngram", "early_exit", "suffix>early_exit", "auto"]


@pytest.mark.parametrize("asked", [{"json_schema": SCHEMA}, {"regex": "[a-c]{9}(ab)*!"}], ids=list)
def test_every_draft_gives_the_constrained_text_of_the_oracle(engine, asked):
    """Guards the whole way with the real library, ends included: a closed object runs no end-of-text token."""
    request = selfspec.request.Request(**asked)
    for temperature in (0.0, 1.0):
        grammar = engine.grammar(request)
        sampling = Sampling(temperature, constraint=grammar, coupled=True)
        ids = engine.encode("hello", chat=False)
        want = oracle(engine.runtime, ids, 200, Chance(3), sampling, lambda t, g=grammar: t == 257 or g.ends(t))
        for draft in DRAFTS:
            options = {"adaptive": False} if draft in {"suffix", "ngram"} else {}
            made = engine.generate(
                ids, draft=draft, temperature=temperature, seed=3, coupled=True, **asked, **options
            )
            assert list(made.token_ids) == want, draft
            assert made.finish_reason == "stop"
            if draft != "plain" and draft != "auto":
                assert made.stats.accepted > 0, draft
    assert json.loads(made.text).keys() == SCHEMA["properties"].keys() if "json_schema" in asked else True


def test_sampled_texts_of_a_batch_are_what_was_asked_for_drafts_on(engine):
    """Guards validity: sampled drafts, trees, look-up and chains of drafters, all at once in a batch of 16."""
    asks = []
    for seed in range(60):
        draft = [("early_exit", {"siblings": seed % 2}), ("suffix", {}), ("suffix>early_exit", {})][seed % 3]
        what = {"json_schema": SCHEMA} if seed % 2 else {"regex": "-?[1-9][0-9]{0,5}(\\.[0-9]{2})?"}
        asks.append({"prompt": f"give {seed}", "seed": seed, "draft": draft[0], **draft[1], **what})
    found = dict(engine.batch(asks, slots=16, temperature=1.2, max_new_tokens=300))
    drafted = 0
    for seed, made in found.items():
        drafted += made.stats.drafted
        if not seed % 2:
            assert re.fullmatch("-?[1-9][0-9]{0,5}(\\.[0-9]{2})?", made.text), made.text
            continue
        document = json.loads(made.text)
        assert (set(document), document["kind"] in {"red", "green"}) == ({"name", "kind", "ok"}, True)
        assert len(document["name"]) <= 6
    assert len(found) == 60
    assert drafted > 600


def test_forced_tokens_are_drafts_that_always_hold(engine):
    """Guards the free drafts: a text that its grammar forces takes a pass for each γ + 1 tokens, and no guess."""
    what = "abcdefghijklmnopqrstuvwxyz" * 2
    made = engine.generate("x", regex=what, draft="ngram", gamma=7, adaptive=False)
    assert made.text == what
    assert made.stats.accepted == made.stats.drafted
    assert made.stats.rounds == -(-(len(what) - 1) // 8)


def test_the_drafters_grammar_goes_back_and_the_targets_does_not(engine):
    """Guards the two matchers: what is tried by one leaves the other where it stands."""
    grammar = Grammars(engine.tokenizer, engine.config).start("regex", "ab(c|d)e")
    ahead, ids = grammar.for_drafts, engine.tokenizer.encode("zabce", add_special_tokens=False)
    z, a, b, c, e = ids

    def names(flags):
        return None if flags is None else [engine.tokenizer.piece(int(t)) for t in np.flatnonzero(flags)]

    at = [1, 2]
    for draft, want in (([], ["a"]), ([a, b], ["c", "d"]), ([a, z], None), ([a], ["b"]), ([a, b, c], ["e"])):
        assert names(ahead.allowed(Prefix(at, 2, draft))) == want
    assert names(grammar.allowed(Prefix(at, 2))) == ["a"]
    assert ahead.legal(Prefix(at, 2), [a, b, e]) == 2
    assert ahead.forced(Prefix(at, 2)) == [a, b]
    assert [grammar.ends(t) for t in (a, b, c)] == [False] * 3
    assert names(grammar.allowed(Prefix([*at, a, b, c], 2))) == ["e"]
    assert grammar.ends(e)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"json_schema": "{no"}, "json_schema"),
        ({"json_schema": "[1]"}, "json_schema"),
        ({"json_schema": {"type": "nope"}}, "json_schema.*nope"),
        ({"json_schema": {"not": {"type": "object"}}}, "json_schema.*not"),
        ({"json_schema": {"not": {}, "x-guidance": {"lenient": True}}}, "json_schema.*not"),
        ({"json_schema": 3}, "json_schema is 3"),
        ({"json_schema": {"$ref": "#"}}, "json_schema cannot be followed: no text is"),
        ({"json_schema": False}, "json_schema cannot be followed: false allows nothing"),
        ({"grammar": "start: start"}, "grammar cannot be followed: no text is"),
        ({"regex": "(a{1000}){1000}"}, "regex cannot be followed: .*too many expressions constructed; correct it"),
        ({"regex": "("}, "regex"),
        ({"regex": "(?=a)b"}, "regex.*look"),
        ({"regex": ""}, "regex is ''"),
        ({"regex": "a" * 300_000}, "regex has 300000"),
        ({"grammar": "start: x"}, "grammar.*x"),
        ({"grammar": "start: " + "(" * 9000 + '"a"' + ")" * 9000}, "grammar.*nested"),
        ({"json_schema": MULTIPLYING}, "json_schema.*too big"),
        ({"json_schema": {"enum": [{1, 2}]}}, "json_schema is no JSON"),
        ({"grammar": "start: /a/", "regex": "a"}, "grammar and regex"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos"),
    ],
    ids=str,
)
def test_a_wrong_grammar_is_an_error_before_anything_runs(engine, options, named):
    """Guards that nothing is ignored, keywords of a schema included, whatever the schema itself asks for."""
    with pytest.raises(OptionError, match=named):
        engine.stream("x", **options)


def test_true_is_any_json(engine):
    """Guards the shortest schema of all."""
    assert json.loads(engine.generate("x", json_schema=True, logit_bias={257: 50}).text) is not None


def test_what_contradicts_a_grammar_ends_the_text(engine):
    """Guards against a text that is silently shorter than asked for, and one that is no member of the grammar."""
    for options in ({"min_tokens": 5}, {"bad_words": ["a"]}, {"logit_bias": {64: float("-inf")}}):
        with pytest.raises(ConstraintError, match="the grammar"):
            engine.generate("x", regex="a", **options)
    assert len(engine.generate("x", regex="[a-c]*", min_tokens=5, temperature=1, seed=1).text) >= 5


def test_a_structure_takes_the_place_of_the_engines_own(tiny):
    """Guards defaults: what a request asks for counts, of whatever kind."""
    engine = selfspec.load(tiny, regex="a+b", **EXACT)
    assert engine.generate("x", max_new_tokens=3).text.startswith("a")
    assert engine.generate("x", grammar='start: "xyz"').text == "xyz"


def test_a_text_that_could_end_goes_on(engine):
    """Guards the end: only where nothing may follow does a text end without an end-of-text token."""
    made = engine.generate("x", regex="[ab]+", logit_bias={257: -1000}, max_new_tokens=9)
    assert (len(made.text), made.finish_reason) == (9, "length")
    made = engine.generate("x", regex="[ab]+", logit_bias={257: 1000}, max_new_tokens=9)
    assert (len(made.text), made.token_ids[-1], made.finish_reason) == (1, 257, "stop")


def test_a_grammar_needs_a_tokenizer_and_an_end(engine, monkeypatch):
    """Guards the errors of engines that can have none."""
    with pytest.raises(OptionError, match="tokenizer"):
        Grammars(None, engine.config)
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(OptionError, match=r"selfspec\[grammar\]"):
        Grammars(engine.tokenizer, engine.config)


def test_a_text_without_a_grammar_is_not_touched(engine):
    """Guards the cost: nothing is made where nothing is asked for."""
    context = Context(engine.runtime, engine.runtime.new_cache(1, 64))
    text = Text(0, 0, [1, 2], 8, Sampling(), Chance(0), lambda _: False)
    assert not text.sampling.changed
    assert text.law(context.prefill(text)).token >= 0
