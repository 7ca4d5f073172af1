"""Trained heads as drafters: what they draft is what the definition says, whatever happened before."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from doubles import GREEDY, Host, run, tiny_core, tiny_hybrid, tiny_runtime
from head_oracle import draft_logits
from lossless_table import FORMS, PROMPTS, head
from random_heads import random_facts, random_head
from wild_drafters import script

from selfspec import drafters, feeds
from selfspec.context import Context, Text
from selfspec.decode import Loop
from selfspec.drafters import trained
from selfspec.drafters.base import Drafter, DraftOptions
from selfspec.errors import OptionError, SelfspecError
from selfspec.flight import Flight
from selfspec.measure.toy import MarkovRuntime
from selfspec.model.head_file import read_head, write_head
from selfspec.runtime.attached import identity_of
from selfspec.sampling import Chance
from selfspec.types import Rows, Sampling, SubLayer

NEW = 14


@cache
def path_of(form):
    """The heads of the table; "wild" is an exit head whose attention decides what it says."""
    if form != "wild":
        return head(form)
    made = random_head(random_facts("exit_head", "attention", taps=(3,)), scale=0.5)
    path = Path(tempfile.mkdtemp()) / "wild.safetensors"
    write_head(path, made)
    return str(path)


def drafter_of(form, runtime=None, **options):
    runtime = tiny_runtime() if runtime is None else runtime
    kind = form if form in ("eagle", "medusa") else "early_exit"
    return drafters.create(kind, runtime.config, {"head": path_of(form), "gamma": 3, **options}, Host(runtime, {}))


class Notes:
    """What a drafter proposed, and after which tokens."""

    def __init__(self, drafter, monkeypatch):
        self.made, propose = [], drafter.propose

        def propose_and_note(context, texts, gammas):
            found = propose(context, texts, gammas)
            for text, draft in zip(texts, found, strict=True):
                self.made.append((list(text.tokens), draft.tokens[: len(draft.widths)]))
            return found

        monkeypatch.setattr(drafter, "propose", propose_and_note)

    def check(self, form, runtime, least, origin=0):
        assert sum(len(drafted) for _, drafted in self.made) >= least
        for tokens, drafted in self.made:
            said = draft_logits(runtime, read_head(path_of(form)), tokens, len(drafted), origin)
            assert list(drafted) == [int(row.argmax()) for row in said], len(tokens)


@pytest.mark.parametrize("form", [*FORMS, "wild"])
def test_drafts_are_those_of_the_definition(form, monkeypatch):
    """Guards every cell, position and row: ragged texts; drafts that fail, hold in part, hold whole."""
    runtime, drafter = tiny_runtime(), drafter_of(form)
    notes, accepted = Notes(drafter, monkeypatch), []
    run(
        runtime,
        PROMPTS[:3],
        drafter,
        new_tokens=NEW,
        each_round=lambda *given: accepted.extend(commit.accepted for commit in given[2].commits),
    )
    assert form == "wild" or {0, 2 if form == "medusa" else 1} <= set(accepted)
    assert form in ("wild", "attention") or 3 in accepted
    notes.check(form, runtime, 40)
    assert drafter.extra_bytes.weights > 0
    assert (drafter.extra_bytes.kv > 0) == (form not in ("none", "linear"))


@dataclass
class Done:
    """What a generation came to."""

    cached_tokens: int = 0


class Turns(Drafter):
    """Two drafters, each in every second round."""

    name = "turns"

    def __init__(self, first, second):
        super().__init__(DraftOptions(gamma=3), first.config)
        self.both, self.round = (first, second), 0

    @property
    def parts(self):
        return self.both

    def begin(self, text):
        for part in self.both:
            part.begin(text)

    def propose(self, context, texts, gammas):
        self.round += 1
        return self.both[self.round % 2].propose(context, texts, gammas)

    def observe(self, text, commit):
        self.both[self.round % 2].observe(text, commit)


@pytest.mark.parametrize("form", ["wild", "eagle"])
@pytest.mark.parametrize("other", ["early_exit:exit_layer=4", "scripted", "layer_skip", "comb"])
def test_rounds_of_others_leave_no_gap(form, other, monkeypatch):
    """Guards states below an exit, which only the draft has run; rows of accepted leaves; and rounds without it.

    A bound of three rows makes the reader read in between.
    """
    monkeypatch.setattr(feeds, "MOST_PENDING", 3)
    runtime, drafter = tiny_runtime(), drafter_of(form)
    notes = Notes(drafter, monkeypatch)
    texts = [text.tokens for text in run(runtime, PROMPTS[:2], new_tokens=NEW)]
    options = {
        "scripted": {"script": script("mixed", texts), "gamma": 3},
        "layer_skip": {"skip": "attention 2,4 mlp 4"},
        "comb": {"exit_layer": 4, "siblings": 2},
    }.get(other, {})
    beside = drafters.create("early_exit" if other == "comb" else other, runtime.config, options)
    longest = []
    run(
        runtime,
        PROMPTS[:2],
        Turns(drafter, beside),
        new_tokens=NEW,
        each_round=lambda context, *_: longest.extend(
            len(context.feeds.of(slot, drafter)) for slot in range(2) if slot in context.feeds._feeds
        ),
    )
    notes.check(form, runtime, 12)
    assert max(longest) <= 3


@pytest.mark.parametrize("form", ["layer", "eagle"])
def test_own_siblings_are_read_where_they_ran(form, monkeypatch):
    """Guards rows of accepted leaves, whose cells are not their positions."""
    runtime, drafter = tiny_runtime(), drafter_of(form, siblings=3)
    notes, branches = Notes(drafter, monkeypatch), []
    commit = Context.commit
    monkeypatch.setattr(
        Context, "commit", lambda self, text, draft, v: branches.append(v.branch) or commit(self, text, draft, v)
    )
    run(runtime, PROMPTS[:2], drafter, new_tokens=NEW)
    assert any(branch and branch != tuple(range(len(branch))) for branch in branches)
    notes.check(form, runtime, 12)


@pytest.mark.parametrize("form", ["wild", "eagle"])
def test_a_text_whose_beginning_is_cached_begins_where_it_is_known(form, monkeypatch):
    """Guards conversations, and slots that another text has had: nothing of it is seen."""
    runtime, drafter = tiny_runtime(), drafter_of(form)
    context = Context(runtime, runtime.new_cache(1, 40))
    loop = Loop(context)

    def generate(tokens, cached):
        text = Text(0, 0, tokens, len(tokens) + NEW, GREEDY, Chance(0), lambda _: False, cached)
        loop.add([text], drafter)
        while loop.texts:
            loop.turn()
        assert text.error is None
        return text

    first = generate(list(PROMPTS[0]), 0)
    notes = Notes(drafter, monkeypatch)
    kept = first.tokens[:5]
    second = generate([*kept, 8, 1, 30], len(kept))
    notes.check(form, runtime, 12, origin=len(kept))
    assert second.tokens == run(runtime, [[*kept, 8, 1, 30]], new_tokens=NEW)[0].tokens
    assert not context.feeds._feeds


@pytest.mark.parametrize("form", ["wild", "eagle"])
def test_prompts_in_pieces_are_read_from_their_beginning(form, monkeypatch):
    """Guards the server's way: a prompt runs in passes between the rounds of others; some of it is read then."""
    monkeypatch.setattr("selfspec.flight.PREFILL_ROWS", 3)
    monkeypatch.setattr(feeds, "MOST_PENDING", 2)
    runtime, drafter = tiny_runtime(), drafter_of(form)
    notes, flight = Notes(drafter, monkeypatch), Flight(runtime, 1, 40)
    text = Text(0, 0, list(PROMPTS[0]), len(PROMPTS[0]) + NEW, GREEDY, Chance(0), lambda _: False, 6)

    class Generation:
        prompt, limit = text.tokens[:7], text.limit

        def open(self, *_):
            return text

        take = staticmethod(lambda _: [])
        completion = staticmethod(lambda *_: Done())
        prompt_scores = None

    Generation.drafter = drafter
    flight.board(0, Generation())
    flight.fill()
    while flight.aboard:
        flight.turn()
    notes.check(form, runtime, 12)


@pytest.mark.parametrize("form", ["layer", "eagle"])
def test_no_row_is_run_for_nothing(form, monkeypatch):
    """Guards what a round costs: exit heads run a row once; eagle once from its feature, once to draft on."""
    runtime, drafter = tiny_runtime(), drafter_of(form)
    attached, ran, rounds = drafter._bound.attached if form == "eagle" else drafter._head.attached, [], []
    run_head = attached.run
    monkeypatch.setattr(attached, "run", lambda *given: ran.append(len(given[2])) or run_head(*given))
    commits = lambda *given: rounds.extend(commit for commit in given[2].commits if given[2].index)  # noqa: E731
    run(runtime, PROMPTS[:3], drafter, new_tokens=NEW, each_round=commits)
    wanted = whole = 0
    for i, prompt in enumerate(PROMPTS[:3]):
        asked = [commit for commit in rounds if commit.sequence == i and commit.drafted]
        before, drafted = asked[:-1], sum(commit.drafted for commit in asked)
        full = sum(commit.accepted == commit.drafted for commit in before)
        features = len(prompt) + sum(len(commit.tokens) for commit in before)
        wanted += features + drafted - len(asked) if form == "eagle" else len(prompt) + drafted + full
        whole += full
    assert whole
    assert sum(ran) == wanted


def test_greedy_drafts_build_no_row_of_the_vocabulary(monkeypatch):
    """Guards the cost of a step: only who samples, or changes logits, needs them all, and then they are exact."""
    for runtime in (tiny_runtime(), tiny_core("fp32")):
        drafter = drafter_of("eagle", runtime, gamma=4, confidence=0.01)
        kind, seen = type(drafter._bound.attached), []
        wide = kind.wide
        monkeypatch.setattr(
            kind, "wide", lambda self, rows, wide=wide, seen=seen: seen.append(1) or wide(self, rows)
        )
        greedy = run(runtime, PROMPTS[:2], drafter, new_tokens=8)
        assert not seen
        # no bias at all, which yet takes the long way
        other = run(runtime, PROMPTS[:2], drafter, new_tokens=8, sampling=Sampling(logit_bias={1: 0.0}))
        assert seen
        assert [text.tokens for text in greedy] == [text.tokens for text in other]
        attached, states = drafter._bound.attached, runtime.embed([1, 2, 3])
        rows, best = attached.wide(attached.logits(states)), attached.best(states)
        assert [one.token for one in best] == rows.argmax(axis=1).tolist()
        lacking = sorted(set(range(61)) - set(read_head(head("eagle")).vocabulary.tolist()))
        assert lacking
        assert (rows[:, lacking] == -np.inf).all()
        for one, row in zip(best, rows, strict=True):
            assert one.probability == pytest.approx(1.0 / np.exp(row - row.max()).sum(), rel=1e-4)


def test_what_does_not_fit_is_refused_in_one_line(tmp_path):
    runtime, path = tiny_runtime(), str(tmp_path / "head.safetensors")

    def refusal(facts, target=runtime, kind=None, vocabulary=None, **options):
        write_head(path, random_head(facts, vocabulary=vocabulary))
        kind = kind or {"eagle": "eagle", "exit_head": "early_exit"}[facts.kind]
        with pytest.raises(SelfspecError) as caught:
            drafters.create(kind, target.config, {"head": path, **options}, Host(target, {}))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    exit_head, eagle = random_facts("exit_head", taps=(2,)), random_facts("eagle")
    assert "another checkpoint, tiny 7" in refusal(replace(eagle, target="no", target_name="tiny 7"))
    assert "wide" in refusal(random_facts(hidden_size=40))
    assert "after layer 6" in refusal(random_facts(taps=(1, 2, 6)))
    assert "after layer 5" in refusal(random_facts("exit_head", taps=(5,)))
    assert "drafts 70 tokens" in refusal(eagle, vocabulary=[1, 69])
    assert "recurrent" in refusal(exit_head, tiny_hybrid("conv"))
    assert "caps its logits" in refusal(eagle, tiny_runtime(logit_cap=3.0))
    assert "leave it out" in refusal(eagle, head_bits=8)
    assert "kind eagle" in refusal(eagle, kind="early_exit")
    assert "exit_layer is 3" in refusal(exit_head, exit_layer=3)
    assert "leave exit_layer out" in refusal(exit_head, exit_layer="adaptive")
    assert "head_bits is 3" in refusal(exit_head, head_bits=3)
    with pytest.raises(OptionError, match="only a trained head reads"):
        drafters.create("early_exit", runtime.config, {"any_target": True})
    with pytest.raises(OptionError, match="runs no trained heads"):
        MarkovRuntime(32).attach(random_head(exit_head))


def test_heads_know_their_checkpoint_in_any_precision(tmp_path, monkeypatch):
    """Guards the head that is shipped: found for its checkpoint however it is packed, and for no other."""
    names = {identity_of(tiny_core(kind)) for kind in ("fp32", "int4")} | {identity_of(tiny_runtime())}
    assert len(names) == 1
    assert identity_of(tiny_runtime(seed=1)) not in names
    (name,) = names
    facts = replace(random_facts("eagle"), target=name, target_name="tiny")
    write_head(tmp_path / "tiny.safetensors", random_head(facts), int8=True)
    for target, options in ((tiny_core("int4"), {}), (tiny_runtime(seed=1), {"any_target": True})):
        given = {"head": str(tmp_path / "tiny.safetensors"), **options}
        drafters.create("eagle", target.config, given, Host(target, {}))
    with pytest.raises(OptionError, match="no eagle head comes with selfspec"):
        drafters.create("eagle", target.config, {}, Host(tiny_core("int4"), {}))
    monkeypatch.setattr(trained, "SHIPPED", tmp_path)
    core = tiny_core("int4")
    found = drafters.create("eagle", core.config, {"gamma": 2}, Host(core, {}))
    assert found.runs == "head on layers 1, 2, 3"
    assert [text.tokens for text in run(core, PROMPTS[:1], found, new_tokens=6)] == [
        text.tokens for text in run(core, PROMPTS[:1], new_tokens=6)
    ]
    with pytest.raises(OptionError, match="no eagle head comes with selfspec"):
        drafters.create("eagle", target.config, {}, Host(tiny_runtime(seed=1), {}))


def test_auto_takes_what_comes_with_the_package_unless_candidates_are_named(tmp_path, monkeypatch):
    """Guards the default: no line to write, and no weights that somebody has not asked for elsewhere."""
    monkeypatch.setattr(trained, "SHIPPED", tmp_path)
    runtime = tiny_runtime()
    for form in ("eagle", "layer"):
        made = read_head(head(form))
        facts = replace(made.facts, target=identity_of(runtime))
        write_head(tmp_path / f"tiny-{form}.safetensors", replace(made, facts=facts))

    def candidates(target, **options):
        auto = drafters.create("auto", target.config, options, Host(target, {}))
        return auto, [choice.label for choice in auto._choices]

    auto, labels = candidates(runtime)
    assert labels[-2:] == ["eagle", "early_exit:head=tiny-layer"]
    assert {part.taps for part in auto.parts} == {(), (1, 2, 3), (4,)}
    assert auto.extra_bytes.weights > 0
    auto.bind(Host(runtime, {}))  # again, as every request does
    assert len(auto._choices) == len(labels)
    assert "eagle" not in candidates(runtime, candidates="suffix,early_exit:exit_layer=2")[1]
    assert "eagle" not in candidates(tiny_runtime(seed=1))[1]
    texts = run(runtime, PROMPTS[:2], auto, new_tokens=NEW)
    assert [text.tokens for text in texts] == [text.tokens for text in run(runtime, PROMPTS[:2], new_tokens=NEW)]
    assert "eagle" in [entry["drafter"] for entry in texts[0].explanation["choices"]]


@pytest.mark.parametrize("form", ["wild", "eagle"])
def test_who_may_never_draft_reads_what_is_recent(form, monkeypatch):
    """Guards long prompts beside other drafters: the head runs over none of their rows until it drafts."""
    monkeypatch.setattr(feeds, "MOST_PENDING", 8)
    monkeypatch.setattr(feeds, "RECENT", 3)
    runtime, drafter = tiny_runtime(), drafter_of(form)
    drafter.keeps_up = False
    read = []
    monkeypatch.setattr(drafter, "read", lambda *_: read.append(1))
    notes, prompt = Notes(drafter, monkeypatch), list(range(20))
    (text,) = run(runtime, [prompt], drafter, new_tokens=NEW)
    assert text.tokens == run(runtime, [prompt], new_tokens=NEW)[0].tokens
    assert not read
    notes.check(form, runtime, 12, origin=len(prompt) - 3)


def test_auto_tells_steps_from_what_is_read_once(monkeypatch):
    """Guards the price of a head: a prompt that it reads before its first draft is not a step."""
    runtime, now = tiny_runtime(), [0.0]
    ran, attached = runtime.run, trained.Attachment.run

    def takes(seconds, call):
        def timed(*args, **named):
            now[0] += seconds(*args)
            return call(*args, **named)

        return timed

    monkeypatch.setattr(runtime, "run", takes(lambda _hidden, _plan, rows, *_: 1.0 + 0.05 * (len(rows) - 1), ran))
    monkeypatch.setattr(
        trained.Attachment, "run", takes(lambda _head, _context, _states, _tokens, rows: 0.08 * len(rows), attached)
    )
    auto = drafters.create(
        "auto", runtime.config, {"candidates": (drafter_of("eagle", runtime),)}, Host(runtime, {})
    )
    (record,) = auto._knowledge.records
    record.expect((0.9, 0.9))
    run(runtime, [[7, 3] * 20], auto, new_tokens=12, clock=lambda: now[0])
    assert auto._choices[0].c == pytest.approx(0.08, rel=0.3)
    assert record.behind.value(0.0) == pytest.approx(0.08, rel=0.3)


@pytest.mark.parametrize(
    ("card", "alphas"),
    [
        ({"held_out": {"greedy": {"alphas": [0.6, 0.5]}}}, (0.6, 0.5)),
        (
            {"held_out": {"greedy": {"alphas": [0.6]}}, "acceptance": {"tasks": {"all": {"alphas": [0.3, 1]}}}},
            (0.3, 1),
        ),
        ({}, ()),
        ({"held_out": [], "acceptance": {"tasks": {"all": {"alphas": ["much", 0.2]}}}}, ()),
        ({"held_out": {"greedy": {"alphas": [1.2]}}, "acceptance": {"tasks": 3}}, ()),
    ],
)
def test_auto_begins_with_what_a_head_says_of_itself(card, alphas, tmp_path, monkeypatch):
    """Guards the first answers: a head that was measured drafts at once, and a strange card is no error."""
    runtime, made = tiny_runtime(), read_head(head("eagle"))
    monkeypatch.setattr(trained, "SHIPPED", tmp_path)
    facts = replace(made.facts, target=identity_of(runtime), card=card)
    write_head(tmp_path / "tiny.safetensors", replace(made, facts=facts))
    auto = drafters.create("auto", runtime.config, {}, Host(runtime, {}))
    record = auto._knowledge.records[-1]
    assert auto._choices[-1].drafter.stated_alphas == alphas
    assert record.is_proven == bool(alphas)
    assert [record.counts.rate(depth, 0.0, 1e-9) for depth in range(len(alphas))] == pytest.approx(alphas)


class Reads:
    """A reader of two layers that never drafts."""

    taps, keeps_up, studies = (1, 3), False, None


def test_a_round_only_notes_what_has_run():
    """Guards rounds in which nobody asks the head: they find no rows, hold few passes, and lose none of them."""
    reader, seen = Reads(), feeds.Feeds()
    seen.open(0, [reader], 0)
    left = np.random.default_rng(0).normal(size=(2, 300, 2, 5)).astype(np.float32)  # a draft row that is rejected
    for cell in range(300):
        seen.forget()
        seen.saw(Rows.of([1, 0, 0], [7, cell, cell + 1]), {
            SubLayer(layer - 1): np.concatenate([np.zeros((1, 5), np.float32), states[cell]])
            for layer, states in zip(reader.taps, left, strict=True)
        })  # fmt: skip
        seen.deliver(None, 0, [cell + 1000], cell, [cell])
        assert len(seen._committed.get(0, ())) < feeds.MOST_NOTED
    first, tokens, states = seen.of(0, reader).take(300)
    assert (first, tokens) == (0, list(range(1000, 1300)))
    np.testing.assert_array_equal(states, np.concatenate([left[0, :, 0], left[1, :, 0]], axis=1))
