"""Drafting ahead while the target verifies: outcomes, laws, threads, and when it pays."""

from __future__ import annotations

import threading
from itertools import pairwise, product

import numpy as np
import pytest
from doubles import TINY, Host, run, tiny_core, tiny_hybrid, tiny_runtime

import selfspec
from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.drafters import overlap, steps
from selfspec.drafters.ahead import Ahead, Outcome, fan_out, withheld
from selfspec.drafters.draft_model import DraftModel
from selfspec.errors import OptionError
from selfspec.measure.laws import loop_law, never, plain_law, total_variation
from selfspec.measure.toy import MarkovRuntime
from selfspec.sampling import Chance
from selfspec.types import Dense, LayerPlan, OneHot, Sampling

SIZE = 3
PROMPT = [5, 17, 3, 3, 42, 5, 17]


# -- outcomes ---------------------------------------------------------------------------------------------


def test_the_fan_out_is_geometric_and_misses_least():
    """Guards the formula of the paper, rounding included, against all ways to spend a small budget."""
    wide = fan_out(10**6, 4, 0.8, 0.7)
    ratio = 0.8 ** (1 / 1.7)
    assert [b / a for a, b in pairwise(wide[:4])] == pytest.approx([ratio] * 3, rel=1e-4)
    assert wide[4] / wide[3] == pytest.approx(ratio * 0.2 ** (-1 / 1.7), rel=1e-4)
    for acceptance in (0.2, 0.5, 0.8):
        chances = [acceptance**k * (1 - acceptance) for k in range(3)] + [acceptance**3]

        def missed(counts, chances=chances):
            return sum(p * (1 + f) ** -0.7 for p, f in zip(chances, counts, strict=True))

        counts = fan_out(6, 3, acceptance)
        assert sum(counts) == 6
        best = min(missed(c) for c in product(range(7), repeat=4) if sum(c) == 6)
        assert missed(counts) < 1.1 * best
    assert fan_out(3, 0, 0.5) == [3]


@pytest.mark.parametrize("runtime", [tiny_runtime(1), tiny_core("fp32", 1)], ids=["torch", "cpu"])
def test_what_is_drafted_ahead_is_what_would_be_drafted_then(runtime):
    """Guards branches: each row sees the text, what is accepted, the bonus token and its own branch, no other."""
    host = Host(runtime, {"other": runtime})
    drafter = drafters.create("draft_model", TINY, {"draft_model": "other", "gamma": 3}, host)
    drafter.look_ahead_with(9)
    context = Context(runtime, runtime.new_cache(2, 60))
    texts = [text_of(PROMPT[: 7 - 3 * slot], slot) for slot in range(2)]
    for text in texts:
        drafter.begin(text)
    drafts = drafter.propose(context, texts, [3, 2])
    found = drafter.ahead(context, texts, drafts, [[3, 2, 2, 2], [4, 2, 3]])
    again = drafter.ahead(context, texts, drafts, [[3, 2, 2, 2], [4, 2, 3]])
    assert [ahead.drafts.keys() for ahead in again] == [ahead.drafts.keys() for ahead in found]
    assert [len(ahead.drafts) for ahead in found] == [9, 9]
    for text, draft, ahead in zip(texts, drafts, found, strict=True):
        for outcome, made in ahead.drafts.items():
            fresh = drafters.create("draft_model", TINY, {"draft_model": "other", "gamma": 3}, host)
            then = text_of([*text.tokens, *draft.tokens[: outcome.accepted], outcome.bonus], 0)
            fresh.begin(then)
            (want,) = fresh.propose(Context(runtime, runtime.new_cache(1, 60)), [then], [3])
            assert made.tokens == want.tokens
            assert outcome.accepted == len(draft) or outcome.bonus != draft.tokens[outcome.accepted]
    assert found[0].row_layers == (3 + 1 + 9 * 3) * 5  # the last token of the draft first, and the others again


def text_of(tokens, slot, limit=60):
    return Text(slot, slot, list(tokens), limit, Sampling(), Chance(0), never)


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
def test_a_look_up_drafts_for_what_stood_in_the_place_of_a_token(kind):
    """Guards look-ups ahead: outcomes are other continuations, and what follows one teaches when it comes."""
    drafter = drafters.create(kind, TINY, {"adaptive": False, "gamma": 3})
    runtime = MarkovRuntime(61, 2)
    context = Context(runtime, runtime.new_cache(1, 99))
    text = text_of([1, 2, 3, 4, 5, 1, 2, 7, 8, 9, 6, 1, 2, 3, 4, 5, 0, 1, 2], 0, limit=99)
    drafter.begin(text)
    (draft,) = drafter.propose(context, [text], [3])
    (ahead,) = drafter.ahead(context, [text], [draft], [[1, 1, 1, 1]])
    assert draft.tokens == (3, 4, 5)
    outcome = Outcome(0, 7)
    assert ahead.drafts[outcome].tokens == (8, 9, 6)
    text.tokens.append(outcome.bonus)
    drafter.observe(text, type("Commit", (), {"tokens": (outcome.bonus,)})())
    drafter.adopt(text, outcome)
    ((before, guesses),) = drafter._memories[text].considered
    assert (before, [guess.token for guess in guesses][:3]) == ((), list(ahead.drafts[outcome].tokens))


# -- the law ----------------------------------------------------------------------------------------------


class AtOnce:
    """Work that is done when it is begun."""

    def __init__(self, work):
        self._found = work()

    def result(self):
        return self._found


def overlapped(runtime, other, gamma=2, outcomes=3, begin=AtOnce, **options):
    host = Host(runtime, {"other": other})
    made = drafters.create(
        "overlap",
        runtime.config,
        {
            "wraps": f"draft_model:draft_model=other:gamma={gamma}",
            "outcomes": outcomes,
            "adaptive": False,
            "repeatable": False,
            **options,
        },
        host,
    )
    if begin is not None:
        made.begin_work = begin
    return made


def distance(seed, withhold, gamma=1):
    """Total variation between the laws of texts with and without drafting ahead."""
    runtime, other = MarkovRuntime(SIZE, 3, seed=seed), MarkovRuntime(SIZE, 2, seed=seed + 9)
    sampling = Sampling(0.9, repetition_penalty=1.3)
    drafter = overlapped(runtime, other, gamma, outcomes=2, withhold=withhold)
    start = ([0], 4)
    hidden, _ = runtime.run(runtime.embed(range(SIZE)), LayerPlan.full(3), None, None)
    want = plain_law(lambda tokens: runtime.logits(hidden)[tokens[-1]].copy(), *start, sampling)
    return total_variation(want, loop_law(runtime, start, sampling, drafter))


@pytest.mark.parametrize("withhold", [1.0, 0.3])
def test_texts_have_the_plain_law_whether_a_draft_was_there_or_missed(withhold, monkeypatch):
    """Guards the q of drafts that were made ahead, with Saguaro's law too, through the real loop."""
    hits = []
    end = overlap.Overlap.end

    def counted(self, text):
        end(self, text)
        hits.append(text.explanation["hits"])

    monkeypatch.setattr(overlap.Overlap, "end", counted)
    assert distance(1, withhold) < 1e-12
    assert sum(hits) >= 20  # of some 450 texts, each weighed by its probability
    assert 0 in hits


def drawn_from_another_law(monkeypatch):
    """Verification is told the law of the drafter, not the one after what is withheld."""
    monkeypatch.setattr(steps, "_checked", lambda law, chance, *_: chance.pick(withheld(law, 1, 0.3)))


def used_by_what_it_says(monkeypatch):
    """What was drafted ahead is only used if it begins with a certain token, and else drafted again."""
    ahead = DraftModel.ahead

    def choosy(self, *given):
        found = ahead(self, *given)
        return [Ahead({key: draft for key, draft in one.drafts.items() if draft.tokens[0] == 0}) for one in found]

    monkeypatch.setattr(DraftModel, "ahead", choosy)


@pytest.mark.parametrize("fault", [drawn_from_another_law, used_by_what_it_says])
def test_the_law_of_texts_catches(fault, monkeypatch):
    """The negative controls of that."""
    fault(monkeypatch)
    assert distance(1, 1.0) > 1e-3


def test_withheld_tokens_are_less_likely_and_the_rest_keeps_its_proportions():
    """Guards Saguaro sampling: sigma of the paper, and what has no other token."""
    law = withheld(Dense.of(np.array([1.0, 4.0, 2.0, 3.0])), 2, 0.5)
    assert law.probs == pytest.approx(np.array([1.0, 2.0, 2.0, 1.5]) / 6.5)
    alone = Dense.of(np.array([0.0, 1.0]))
    assert withheld(alone, 1, 0.0) is alone
    assert withheld(OneHot(3), 2, 0.5) == OneHot(3)


# -- threads ----------------------------------------------------------------------------------------------


@pytest.fixture
def models():
    runtime = tiny_runtime()
    return runtime, tiny_core("int8")


def test_it_drafts_while_the_target_verifies(models, monkeypatch):
    """Guards the point of it all: each waits for the other to begin, so nothing but two at once ends this."""
    verifying, drafting, threads = threading.Event(), threading.Event(), set()
    score, ahead = Context.score, DraftModel.ahead

    def scored(self, *given):
        verifying.set()
        assert drafting.wait(20)
        drafting.clear()
        return score(self, *given)

    def drafted(self, *given):
        threads.add(threading.get_ident())
        drafting.set()
        assert verifying.wait(20)
        verifying.clear()
        return ahead(self, *given)

    monkeypatch.setattr(Context, "score", scored)
    monkeypatch.setattr(DraftModel, "ahead", drafted)
    rounds = []
    (text,) = run(
        models[0],
        [PROMPT],
        overlapped(*models, begin=None, repeatable=True),
        new_tokens=20,
        each_round=lambda c, t, r: rounds.append(r),
    )
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert text.explanation["rounds_drafted_ahead"] == len(rounds) - 1
    assert 0 < text.explanation["hits"] < len(rounds) - 1
    # what is drafted ahead is paid for in drafts
    assert {r.verify_row_layers for r in rounds[1:-2]} == {3 * 5}
    assert all(r.draft_row_layers > 5 for r in rounds[1:-2])


def test_what_goes_wrong_ahead_ends_the_texts_it_was_for(models, monkeypatch):
    """Guards errors of the other thread: they are not lost, and do not hurt texts of other drafters."""

    def broken(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(DraftModel, "ahead", broken)
    with pytest.raises(RuntimeError, match="out of luck"):
        run(models[0], [PROMPT], overlapped(*models, begin=None), new_tokens=20)


# -- whether it pays --------------------------------------------------------------------------------------


def share_on(takes, rounds=4000):
    """The share of the last half of rounds that drafted ahead; ``takes(is_on, was_on, number)`` are seconds."""
    pace, was_on, on = overlap._Pace(), False, 0
    for number in range(rounds):
        is_on = pace.is_on
        pace.learn(was_on, takes(is_on, was_on, number), 1.0)
        on += is_on and number >= rounds // 2
        was_on = is_on
    return on / (rounds // 2)


def test_it_pauses_where_it_slows_the_verification():
    """Guards the back-off on one saturated device, and that both ways stay known when the machine changes."""
    slows = share_on(lambda is_on, was_on, _: (0.1 if was_on else 0.4, 1.5 if is_on else 1.0))
    pays = share_on(lambda is_on, was_on, _: (0.1 if was_on else 0.4, 1.1 if is_on else 1.0))
    turns = share_on(lambda is_on, was_on, n: (0.4, 1.5 if is_on and n < 1500 else 1.0 - 0.2 * is_on))
    back = share_on(lambda is_on, was_on, n: (0.4, 1.0 - 0.2 * is_on if n < 1500 else 1.0 + 0.2 * is_on))
    assert slows < 0.02
    assert pays > 0.95
    assert turns > 0.9
    assert back < 0.05


# -- how it is asked for ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "wraps is ''"),
        ({"wraps": "early_exit"}, "early_exit cannot draft ahead"),
        ({"wraps": "suffix>early_exit"}, "suffix>early_exit cannot draft ahead"),
        ({"wraps": "quantized"}, "quantized cannot draft ahead"),
        ({"wraps": "ngram:siblings=2"}, "overlap drafts chains"),
        ({"wraps": "ngram,suffix"}, "must be one drafter"),
        ({"wraps": "ngram", "outcomes": 0}, "outcomes is 0; it must be 1 to 16"),
        ({"wraps": "ngram", "withhold": 2.0}, "withhold is 2.0"),
        ({"wraps": "ngram", "withhold": 0.5}, "turn repeatable off"),
        ({"wraps": "ngram", "withhold": 0.5, "repeatable": False}, "ngram draws nothing"),
    ],
)
def test_what_cannot_be_drafted_ahead_is_refused(options, says):
    """Guards the one-line errors."""
    with pytest.raises(OptionError, match=says):
        drafters.create("overlap", TINY, options)


def test_a_draft_model_with_recurrent_layers_is_refused():
    """Guards branches: rows of recurrent layers follow one another, and cannot fork."""
    target = tiny_runtime()
    with pytest.raises(OptionError, match="recurrent layers"):
        overlapped(target, tiny_hybrid("conv"))


def test_it_cannot_be_a_candidate_or_a_stage():
    """Guards wrappers that would never call it during a verification."""
    for draft, options in (("auto", {"candidates": "overlap"}), ("suffix>overlap", {})):
        with pytest.raises(OptionError, match="overlap"):
            drafters.create(draft, TINY, options)


def test_through_the_engine(tiny):
    """Guards the way of a user, greedy and sampled, alone and in a batch: the text is that of plain decoding."""
    engine = selfspec.load(tiny, runtime="torch", max_new_tokens=24, ignore_eos=True, draft="plain")
    for options in ({}, {"temperature": 0.9, "seed": 3}):
        plain = engine.generate("hello", **options)
        draft = {"draft": "overlap", "wraps": f"draft_model:draft_model={tiny}", "adaptive": False, **options}
        made = engine.generate("hello", **draft)
        assert made.token_ids == plain.token_ids
        assert made.explanation["hits"] > 0
        assert [one.token_ids for _, one in engine.batch(["hello"] * 3, **draft)] == [plain.token_ids] * 3
