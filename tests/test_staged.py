"""Chains of drafters: what they hand on has the law that they state, and costs what it must."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from doubles import TINY, run, tiny_runtime
from test_lossless import Counting

import selfspec
from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.drafters import steps
from selfspec.drafters.buffers import draft_buffers
from selfspec.drafters.specs import parse_specs
from selfspec.errors import OptionError
from selfspec.measure.dice import AllOutcomes
from selfspec.measure.laws import loop_law, never, plain_law, total_variation
from selfspec.measure.toy import MarkovRuntime
from selfspec.rounds import Commit
from selfspec.sampling import Chance
from selfspec.types import Draft, LayerPlan, Sampling

SIZE = 3


def scripted(config, gamma=4):
    """Says something at every place, right or not."""
    return drafters.create(
        "scripted",
        config,
        {"script": lambda tokens, n: [(tokens[-1] + i) % SIZE for i in range(n)], "gamma": gamma},
    )


def chain(config, kind, gamma, **options):
    """A chain of drafts that are sampled or copied, and that are checked or gone on from."""
    copied = scripted(config, gamma)
    stages = {
        "drawn, checked": ["early_exit:exit_layer=1", "early_exit:exit_layer=2"],
        "drawn, checked by other layers": ["early_exit:exit_layer=2", "layer_skip:skip=mlp 1"],
        "copied, checked": [copied, "early_exit:exit_layer=2"],
        "drawn, copied": ["early_exit:exit_layer=2:gamma=1", copied],
        "copied, checked, checked": [copied, "early_exit:exit_layer=1", "early_exit:exit_layer=2"],
        "copied, checked with siblings": [copied, "early_exit:exit_layer=2:siblings=1"],
    }
    return drafters.create("staged", config, {"stages": stages[kind], "gamma": gamma, **options})


KINDS = [
    "drawn, checked",
    "drawn, checked by other layers",
    "copied, checked",
    "drawn, copied",
    "copied, checked, checked",
    "copied, checked with siblings",
]

# -- the law ----------------------------------------------------------------------------------------------


def told_and_true(kind, gamma=2):
    """Total variation between the law that drafts of full length state and the one that they have."""
    runtime, found, stated = MarkovRuntime(SIZE, 3, seed=4), defaultdict(float), {}
    for chance in AllOutcomes():
        text = Text(0, 0, [0, 1], 20, Sampling(1.3), chance, never)
        drafter = chain(runtime.config, kind, gamma)
        drafter.begin(text)
        (draft,) = drafter.propose(Context(runtime, runtime.new_cache(1, 20)), [text], [gamma])
        found[draft.tokens] += chance.weight
        stated[draft.tokens] = np.prod([q.probability(x) for q, x in zip(draft.laws, draft.tokens, strict=True)])
    return total_variation(found, stated), found


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_has_the_law_that_it_states(kind):
    """Guards the q of every token: whatever an early stage guessed, the last one's own law comes out."""
    distance, found = told_and_true(kind)
    assert distance < 1e-12
    assert abs(sum(found.values()) - 1.0) < 1e-12
    if kind == "drawn, checked":
        assert set(found) == set(product(range(SIZE), repeat=2))


def guesses_that_always_hold(law, chance, guess, guessed_from):
    return chance.pick(law) if guess is None else guess


def rejections_without_the_residual(law, chance, guess, guessed_from):
    if guess is None or guessed_from is None:
        return chance.pick(law)
    return guess if chance.accept(law.probability(guess) / guessed_from.probability(guess)) else chance.pick(law)


FAULTS = [
    (guesses_that_always_hold, "copied, checked"),
    (guesses_that_always_hold, "drawn, checked"),
    (rejections_without_the_residual, "drawn, checked"),
]


@pytest.mark.parametrize(("fault", "kind"), FAULTS)
def test_the_law_of_a_draft_catches(monkeypatch, fault, kind):
    """The negative controls of the law of a draft."""
    monkeypatch.setattr(steps, "_checked", fault)
    assert told_and_true(kind)[0] > 1e-3


def test_the_law_of_texts_catches_a_draft_that_states_a_wrong_law(monkeypatch):
    """The negative control of the law of texts."""
    monkeypatch.setattr(steps, "_checked", rejections_without_the_residual)
    assert max(distance(seed, "drawn, checked") for seed in range(4)) > 1e-3


def distance(seed, kind):
    """Total variation between the laws of texts with and without a chain, for a random configuration."""
    random = np.random.default_rng([seed, *kind.encode()])
    runtime = MarkovRuntime(SIZE, 3, seed=seed)
    shaping = {"repetition_penalty": 1.7} if seed % 2 else {"processors": (lambda prefix, x: x - 0.3 * prefix[-1],)}
    sampling = Sampling(float(random.choice([0.7, 1.2])), top_k=2, **shaping)
    stop = {"confidence": 0.55, "adaptive": True} if random.random() < 0.5 else {}
    drafter = chain(runtime.config, kind, 2, **stop)
    start, end = ([0], 4), int(random.choice([-1, 1]))
    hidden, _ = runtime.run(runtime.embed(range(SIZE)), LayerPlan.full(3), None, None)
    want = plain_law(lambda tokens: runtime.logits(hidden)[tokens[-1]].copy(), *start, sampling, lambda t: t == end)
    return total_variation(want, loop_law(runtime, start, sampling, drafter, lambda t: t == end))


@pytest.mark.parametrize("kind", KINDS)
def test_texts_have_the_plain_law(kind):
    """Guards chains as a whole: stops that depend on what was guessed, ends, room, penalties, processors."""
    assert max(distance(seed, kind) for seed in range(3)) < 1e-12


# -- what it costs ----------------------------------------------------------------------------------------


def rounds_of(stages, gamma):
    """Rounds after the prefill, each with the rows of the passes that its draft ran; all rows are counted."""
    runtime, found, passes, step = Counting(tiny_runtime()), [], [], Context.step

    def counted(self, plan, texts, tokens, *rest, **more):
        passes.append(len(tokens[0]))
        return step(self, plan, texts, tokens, *rest, **more)

    def each_round(_context, _texts, round_):
        truth = runtime.take()
        if round_.index:
            assert round_.draft_row_layers + round_.verify_row_layers == truth
            found.append((round_, passes.copy()))
        passes.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "step", counted)
        run(runtime, [[5, 17, 3, 3, 42]], "staged", {"stages": stages, "gamma": gamma}, each_round=each_round)
    full = [(round_, passes) for round_, passes in found if round_.commits[0].drafted == gamma]
    assert len(full) > 3
    return full


def test_guesses_that_hold_cost_one_shallow_pass():
    """Guards the point of it all: γ tokens are checked by one pass of γ rows, from which verification resumes."""
    for round_, passes in rounds_of("early_exit:exit_layer=3:gamma=6>early_exit:exit_layer=3:gamma=1", 6):
        assert passes == [1] * 6 + [6]
        assert round_.draft_row_layers == 2 * 6 * 3
        assert round_.verify_row_layers == 7 * 5 - 6 * 3


def test_a_deeper_exit_resumes_from_a_shallower_one():
    """Guards the states between stages: a guess costs the layers between two exits."""
    seen = set()
    for round_, passes in rounds_of("early_exit:exit_layer=1>early_exit:exit_layer=3", 4):
        assert passes[:5] == [1] * 4 + [4]
        seen.add(len(passes))
        assert round_.draft_row_layers == 4 * 1 + 4 * 2 + 3 * (len(passes) - 5)
        assert round_.verify_row_layers == 5 * 5 - 4 * 3
    assert len(seen) > 1


def test_what_is_copied_after_a_shallow_draft_leaves_its_states():
    """Guards mixed drafts: rows of the exit resume, rows of the look-up start at layer 0."""
    copied = drafters.create("scripted", TINY, {"script": lambda tokens, n: [1] * n, "gamma": 6})
    for round_, passes in rounds_of(["early_exit:exit_layer=3:gamma=2", copied], 6):
        assert passes == [1, 1]
        assert round_.draft_row_layers == 2 * 3
        assert round_.verify_row_layers == 7 * 5 - 2 * 3


# -- look-ups that look ahead -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
def test_a_look_up_goes_on_where_the_text_would(kind):
    """Guards `ahead`: what is proposed after tokens of a draft is what would be if they were committed."""
    random = np.random.default_rng(3)
    asked = 0
    for _ in range(60):
        tokens = random.integers(0, 4, size=30).tolist()
        after = tuple(random.integers(0, 4, size=random.integers(1, 5)).tolist())
        guesses = []
        for known, ahead in ((tokens, after), ([*tokens, *after], ())):
            drafter = drafters.create(kind, TINY, {"adaptive": False})
            text = Text(0, 0, list(known), 200, Sampling(), Chance(0), never)
            memory = drafter.memory(text)
            memory.update(text.tokens)
            guesses.append(
                [guess.token for guess, _ in zip(next(iter(memory.chains(ahead))), range(3), strict=False)]
            )
        asked += guesses[0] == guesses[1]
    assert asked >= 30  # the tokens ahead are not indexed, so what stands in them is not found


def test_what_is_copied_after_a_draft_teaches_only_where_that_held():
    """Guards the trust in kinds of matches: a guess after a token that did not come says nothing."""
    drafter = drafters.create("ngram", TINY, {"adaptive": False})
    text = Text(0, 0, [1, 2, 3, 4, 5, 9, 1, 2], 200, Sampling(), Chance(0), never)
    drafter.begin(text)
    runtime = MarkovRuntime(61, 2)
    context = Context(runtime, runtime.new_cache(1, 200))
    for first, counted in ((3, True), (7, False)):
        (draft,) = drafter.refine(context, [text], [4], [Draft((3,))])
        assert draft.tokens == (3, 4, 5, 9)
        kind = drafter._memories[text].considered[0][1][0].kind
        before = drafter._memories[text].trust.rate(kind)
        drafter._memories[text].learn([first, 4])
        assert (drafter._memories[text].trust.rate(kind) > before) == counted


def test_every_stage_learns_from_what_it_has_handed_on(monkeypatch):
    """Guards stops that adapt: an early stage is judged by its own draft, the last one by what was verified."""
    stages = [
        drafters.create("scripted", TINY, {"script": lambda tokens, n, says=says: says[:n], "gamma": gamma})
        for says, gamma in (([1, 2, 9], 3), ([4, 5], 5))
    ]
    chained = drafters.create("staged", TINY, {"stages": stages})
    runtime, seen = MarkovRuntime(61, 2), []
    text = Text(0, 0, [0], 50, Sampling(), Chance(0), never)
    for stage in stages:
        monkeypatch.setattr(stage, "observe", lambda _, commit: seen.append((commit.depth, commit.accepted)))
    chained.begin(text)
    (draft,) = chained.propose(Context(runtime, runtime.new_cache(1, 50)), [text], [7])
    assert draft.tokens == (1, 2, 9, 4, 5)
    chained.observe(text, Commit(0, (1, 2, 3), draft.widths, 2, None))
    assert seen == [(3, 2), (5, 2)]


# -- how it is written ------------------------------------------------------------------------------------


def test_a_chain_is_written_with_arrows():
    """Guards one syntax everywhere: --draft, columns, candidates, Python; options belong to their stage."""
    (spec,) = parse_specs("suffix:gamma=9 > early_exit:exit_layer=2")
    assert spec.label == "suffix:gamma=9>early_exit:exit_layer=2"
    made = [
        drafters.create(spec.label, TINY, {}),
        drafters.create("staged", TINY, spec.options(drafters.drafter_class("staged").Options)),
        drafters.create("staged", TINY, {"stages": ["suffix:gamma=9", "early_exit:exit_layer=2"]}),
    ]
    assert len({drafter.options for drafter in made}) == 1
    assert made[0].options.gamma == 9
    assert (made[0].name, made[0].runs) == ("suffix>early_exit", "exit 2/5")
    assert [part.name for part in made[0].parts] == ["suffix", "early_exit"]
    assert not made[0].is_free
    assert drafters.create("suffix>ngram", TINY, {}).is_free
    assert drafters.create("early_exit:exit_layer=2", TINY, {"gamma": 3}).options.gamma == 3
    auto = drafters.create("auto", TINY, {"candidates": "suffix>early_exit:exit_layer=2,ngram"})
    assert [part.name for part in auto.parts] == ["suffix", "early_exit", "ngram"]


@pytest.mark.parametrize(
    ("draft", "options", "says"),
    [
        ("suffix>", {}, "has no name"),
        ("suffix>early_exit:exit_layer=9", {}, "exit_layer|layer"),
        ("suffix>early_exits", {}, "drafter is 'early_exits'"),
        ("suffix>early_exit:depth=2", {}, "has no option depth"),
        ("suffix>early_exit", {"exit_layer": 2}, "no option exit_layer"),
        ("suffix>early_exit,ngram", {}, "must be one drafter, or a chain"),
        ("suffix>auto", {}, "auto cannot be a stage"),
        ("plain>early_exit", {}, "plain cannot be a stage"),
        ("early_exit:siblings=2>early_exit", {}, "only the last one may have them"),
        ("suffix>early_exit:exit_layer=adaptive", {}, "name its exit layer"),
        ("early_exit:gamma=2", {"gamma": 3}, "gamma is in 'early_exit:gamma=2' and given beside it"),
        ("staged", {}, "at least two"),
        ("staged", {"stages": "ngram"}, "at least two"),
        ("staged", {"stages": [3]}, "must be drafters"),
        ("staged", {"stages": ["suffix,ngram", "early_exit"]}, "is no stage of a chain"),
    ],
)
def test_what_is_no_chain_is_refused(draft, options, says):
    """Guards the one-line errors: what was given, what is allowed."""
    with pytest.raises(OptionError, match=says):
        drafters.create(draft, TINY, options)


def test_a_chain_through_the_engine(tiny):
    """Guards the way of a user, whose text is that of plain decoding, with a prediction too; and the buffers."""
    engine = selfspec.load(tiny, runtime="torch", max_new_tokens=24, ignore_eos=True)
    plain = engine.generate("hello", draft="plain")
    for draft, more in (("suffix>early_exit:exit_layer=2", {"gamma": 5}), ("early_exit:exit_layer=2:gamma=3", {})):
        made = engine.generate("hello", draft=draft, prediction=None if more == {} else plain.token_ids, **more)
        assert made.token_ids == plain.token_ids
    told = engine.generate("hello", draft="suffix>early_exit:exit_layer=3", prediction=plain.token_ids)
    assert told.token_ids == plain.token_ids
    assert told.stats.accepted_prediction_tokens > 0
    assert [one.token_ids for _, one in engine.batch(["hello"] * 3, draft="ngram>early_exit")] == [
        plain.token_ids
    ] * 3
    comb = drafters.create("ngram>early_exit:siblings=2:gamma=4", TINY, {"gamma": 4})
    sizes = draft_buffers(TINY, comb, Sampling(1.0), 8)
    assert sizes["laws = gamma * (1 + siblings) * V"] == 4 * 3 * TINY.vocab_size * 8
    assert sizes["hidden = gamma * d"] == 4 * TINY.hidden_size * 8
