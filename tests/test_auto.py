"""The controller: what it chooses in worlds of known costs, what it may lose, and that it changes no text."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from doubles import TINY, Host, run, tiny_core, tiny_runtime
from lossless_table import PROMPTS, runtime
from simulated import CONFIG, SimulatedRuntime, auto, best_fixed, look_up, speed
from wild_drafters import Erratic, Taught

import selfspec
from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.decode import Loop, decode
from selfspec.drafters import evidence, turn
from selfspec.drafters.buffers import draft_buffers
from selfspec.drafters.comb import chain_of
from selfspec.drafters.evidence import Account, Counts, Estimate
from selfspec.errors import OptionError
from selfspec.measure.dice import AllOutcomes
from selfspec.measure.laws import plain_law, total_variation
from selfspec.measure.toy import MarkovRuntime
from selfspec.types import Draft, LayerPlan, Sampling


def level(value):
    return lambda *_: value


def switching(before, after, places=250):
    return lambda place, *_: after if (place // places) % 2 else before


WRONG = level(0.0)
# name: acceptance of exits, acceptance of the look-up, load of the machine, price of a row, least share of the best
WORLDS = {
    "nothing is right": (level(0.0), WRONG, level(1.0), 0.15, 0.98),
    "exits are sometimes right": (lambda _, k: 0.1 + 0.3 * k / 16, WRONG, level(1.0), 0.15, 0.98),
    "good from layer 4 on": (lambda _, k: 0.8 if k >= 4 else 0.6, WRONG, level(1.0), 0.15, 0.95),
    "good from layer 8 on": (lambda _, k: 0.95 if k >= 8 else 0.3, WRONG, level(1.0), 0.15, 0.95),
    "very good": (level(0.95), WRONG, level(1.0), 0.15, 0.95),
    "all exits alike": (level(0.72), WRONG, level(1.0), 0.15, 0.94),
    "rows are dear": (lambda _, k: 0.8 if k >= 4 else 0.6, WRONG, level(1.0), 0.35, 0.95),
    "a mediocre look-up": (level(0.0), level(0.5), level(1.0), 0.15, 0.95),
    "copying": (level(0.0), level(0.95), level(1.0), 0.15, 0.95),
    "copying begins and ends": (level(0.0), switching(0.0, 0.95, 200), level(1.0), 0.15, 1.0),
    "exits turn bad": (switching(0.9, 0.0), WRONG, level(1.0), 0.15, 0.95),
    "exits turn good": (switching(0.0, 0.9), WRONG, level(1.0), 0.15, 0.95),
    "the machine slows down": (level(0.85), WRONG, lambda p: 1.0 if p < 300 else 3.0, 0.15, 0.95),
    "the machine speeds up": (level(0.85), WRONG, lambda p: 3.0 if p < 300 else 1.0, 0.15, 0.95),
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_regret_over_500_rounds(world):
    """Guards the choice as a whole: close to the best drafter and γ that hindsight could have fixed."""
    alpha, look, load, slope, least = WORLDS[world]
    simulated = SimulatedRuntime(alpha, slope, load)
    rate, _, rounds = speed(simulated, auto(look_up(look)), 10**5, rounds=500)
    assert rounds == 500
    best = best_fixed(alpha, load, slope, look, round(rate * simulated.clock.now))
    assert rate > least * best


def lost(slope, **options):
    """Shares of time and of row-layers that always-wrong drafts cost 200 tokens."""
    simulated = SimulatedRuntime(level(0.0), slope)
    rate, layers, _ = speed(simulated, auto(look_up(WRONG), **options), 201)
    return 1.0 - rate / 100.0, layers - 1.0


@pytest.mark.parametrize("slope", [0.0, 0.15, 1.0])
def test_drafts_that_are_always_wrong_cost_little(slope):
    """Guards the aim "never slower": under 2 % of 200 tokens by the clock, and no row at all."""
    seconds, layers = lost(slope)
    assert 0.0 < seconds < 0.02
    assert layers == 0.0


@pytest.mark.parametrize("fault", ["no budget", "no proof"])
def test_it_catches_a_controller_that_spends_more(monkeypatch, fault):
    """The negative controls of the test before."""
    if fault == "no budget":
        monkeypatch.setattr(Account, "allows", lambda *_, **__: True)
        monkeypatch.setattr(evidence.Record, "tried", lambda *_: None)
        monkeypatch.setattr(Counts, "rate", lambda _self, _cell, prior, _weight: prior)
        assert lost(0.15)[0] > 0.02
    else:
        monkeypatch.setattr(evidence.Record, "is_proven", True)
        assert lost(0.0)[1] > 0.0


def test_it_catches_a_controller_that_never_learns(monkeypatch):
    """The negative control of the regret."""
    monkeypatch.setattr(Estimate, "learn", lambda *_: None)
    simulated = SimulatedRuntime(level(0.95), 0.15)
    rate, _, _ = speed(simulated, auto(look_up(WRONG)), 10**5, rounds=500)
    assert rate < 0.8 * best_fixed(level(0.95), level(1.0), 0.15, WRONG, 1000)


def test_probes_stay_within_their_share_of_the_time():
    """Guards the budget over a long text: a hundredth, and half a pass in advance."""
    simulated = SimulatedRuntime(level(0.0), 0.15)
    rate, _, _ = speed(simulated, auto(), 1201)
    assert 1.0 - rate / 100.0 < 0.011


def test_a_look_up_comes_back_within_few_rounds():
    """Guards a text that begins to copy: what was not drafted was compared all the same."""
    simulated = SimulatedRuntime(level(0.0), 0.15)
    made = auto(look_up(lambda place: 1.0 if place >= 150 else 0.0))
    context = Context(simulated, simulated.new_cache(1, 10**6))
    text = Text(0, 0, [0], 400, Sampling(), None, lambda _: False)
    text.chance = selfspec.sampling.Chance(0)
    loop = Loop(context, simulated.clock)
    loop.add([text], made)
    while len(text.tokens) < 150:
        assert loop.turn().commits[0].drafted == 0
    drafted = [loop.turn().commits[0].drafted for _ in range(8)]
    assert max(drafted[4:]) >= 3


def test_a_first_look_up_that_was_disturbed_is_not_believed_for_ever(monkeypatch):
    """Guards against a pause of the machine while a candidate is first timed: it was never asked again."""
    simulated = SimulatedRuntime(level(0.0), 0.15)
    made = auto(look_up(level(0.95)))
    free, pauses = made.parts[0], [0.03]  # three passes
    say = free.propose

    def pausing(*args):
        simulated.clock.now += pauses.pop() if pauses else 0.0
        return say(*args)

    monkeypatch.setattr(free, "propose", pausing)
    rate, _, _ = speed(simulated, made, 10**5, rounds=500)
    assert not pauses
    assert rate > 0.9 * best_fixed(level(0.0), level(1.0), 0.15, level(0.95), 1000)


def test_what_a_look_up_promised_is_compared_as_far_as_tokens_came(monkeypatch):
    """Guards against a right draft that counts as a broken promise, because a round brought fewer tokens."""
    made = auto(look_up(level(1.0)), candidates=())
    (free,) = made.parts
    say = free.propose
    monkeypatch.setattr(free, "propose", lambda *args: [replace(d, chances=(0.9,) * len(d)) for d in say(*args)])
    monkeypatch.setattr(evidence.Record, "is_proven", False)
    speed(SimulatedRuntime(level(0.0), 0.15), made, 40)
    (record,) = made._knowledge.records
    assert record.stated > 10.0
    assert record.honesty == pytest.approx(1.0, abs=0.15)


def compared(texts, slope):
    """Speed ÷ that of plain decoding, and row-layers per token, once a text alone has shown what rows cost."""
    simulated, made = SimulatedRuntime(level(0.8), slope), auto()
    speed(simulated, made, 150)
    rate, layers, _ = speed(simulated, made, 200, texts=texts)
    plain, _, _ = speed(simulated, drafters.create("plain", CONFIG, {}), 50, texts=texts)
    return rate / plain, layers


def test_a_batch_in_which_speculation_stops_paying():
    """Guards the price of a row: where a pass is bound by arithmetic, several texts leave nothing to draft with."""
    ratio, layers = compared(1, 0.3)
    assert ratio > 1.08
    assert layers > 1.1
    ratio, layers = compared(8, 0.3)
    assert ratio > 0.98
    assert layers < 1.05
    assert compared(8, 0.0)[0] > 1.5  # there rows cost nothing


def test_texts_of_a_batch_are_judged_one_by_one():
    """Guards the choice per text: a look-up that serves one of two is used for that one only."""
    simulated = SimulatedRuntime(level(0.0), 0.1)

    def script(tokens, gamma):
        right = look_up(level(1.0 if tokens[0] else 0.0))
        return right(tokens, gamma)

    made = auto(script)
    texts = [Text(i, i, [i], 200, Sampling(), selfspec.sampling.Chance(i), lambda _: False) for i in range(2)]
    loop = Loop(Context(simulated, simulated.new_cache(2, 200)), simulated.clock)
    loop.add(texts, made)
    drafted = [0, 0]
    while len(loop.texts) == 2:
        for commit in loop.turn().commits:
            drafted[commit.sequence] += commit.drafted
    loop.close()
    assert drafted[1] > 100
    assert drafted[0] < 10


# -- the text ---------------------------------------------------------------------------------------------


def law_distance(seed, repeatable):
    """Total variation between the laws of plain decoding and of the controller, by enumeration."""
    toy = MarkovRuntime(2, 3, seed=seed)
    sampling = Sampling((0.7, 1.2)[seed % 2])
    hidden, _ = toy.run(toy.embed(range(2)), LayerPlan.full(3), None, None)
    want = plain_law(lambda tokens: toy.logits(hidden)[tokens[-1]].copy(), [0], 4, sampling)
    options = {"candidates": ("early_exit:exit_layer=1", "early_exit:exit_layer=2"), "repeatable": repeatable}
    law = defaultdict(float)
    for chance in AllOutcomes():  # what is learned and the time begin anew each time
        made = drafters.create("auto", toy.config, {**options, "gamma": 2}, Taught(toy, seed))
        text = Text(0, 0, [0], 5, sampling, chance, lambda _: False)
        clock = Erratic(seed, toy.costs)
        for _ in decode(Context(toy, toy.new_cache(1, 5)), [text], made, clock):
            pass
        law[tuple(text.tokens[1:])] += chance.weight
    return total_variation(want, law)


@pytest.mark.parametrize("repeatable", [True, False])
def test_texts_have_the_plain_law(monkeypatch, repeatable):
    """Guards decisions that learn from what was drawn: by enumeration, with a clock that makes them vary."""
    seen = []
    chosen = turn.Memory.take
    monkeypatch.setattr(turn.Memory, "take", lambda m, i, *rest: (seen.append(i), chosen(m, i, *rest))[1])
    for seed in range(4):
        assert law_distance(seed, repeatable) < 1e-12
    assert seen, "nothing was drafted: this would prove nothing"


def test_it_catches_drafts_that_are_dropped_for_what_they_say(monkeypatch):
    """The negative control: a decision that looks at the drawn token."""
    chosen = turn.Memory.take

    def picky(memory, i, draft, net):
        if not draft.tokens or draft.tokens[0] != 0:
            chosen(memory, i, draft, net)

    monkeypatch.setattr(turn.Memory, "take", picky)
    assert max(law_distance(seed, False) for seed in range(4)) > 1e-3


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
def test_a_seed_gives_the_plain_text_whatever_the_clock_says(temperature):
    """Guards --seed under a controller: sampled drafts are deterministic, so no time can reach the text."""
    sampling = Sampling(temperature)
    tiny = runtime("torch")
    plain = [text.tokens for text in run(tiny, PROMPTS, sampling=sampling)]
    for seed in range(2):
        made = drafters.create("auto", tiny.config, {"gamma": 4}, Taught(tiny, seed))
        clock = Erratic(seed, tiny.costs)
        assert [text.tokens for text in run(tiny, PROMPTS, made, sampling=sampling, clock=clock)] == plain


# -- the seam ---------------------------------------------------------------------------------------------


def test_nothing_is_kept_of_a_text_that_has_left():
    """Guards memory: candidates and controller forget; the explanation goes with the text."""
    made = drafters.create("auto", TINY, {})
    for text in run(tiny_runtime(), PROMPTS, made):
        assert [choice["drafter"] for choice in text.explanation["choices"]] == [
            "plain",
            "suffix",
            "early_exit:exit_layer=1",
            "early_exit:exit_layer=2",
        ]
        assert sum(choice["rounds"] for choice in text.explanation["choices"]) == text.explanation["rounds"]
    assert not made._memories
    for part in made.parts:
        assert not getattr(part, "_memories", None)
        assert not getattr(part, "_stops", None)


def test_what_is_learned_outlives_a_request(tiny):
    """Guards the engine's memory: the next request knows the candidates."""
    engine = selfspec.load(tiny, draft="auto")
    engine.generate("ab", max_new_tokens=8)
    (knowledge,) = [found for key, found in engine._kept.items() if key[0] == "auto"]
    rounds = knowledge.now
    assert rounds > 0
    engine.generate("ab", max_new_tokens=8)
    assert knowledge.now > rounds
    assert [found for key, found in engine._kept.items() if key[0] == "auto"] == [knowledge]


def test_the_verdict_says_when_speculation_is_off():
    """Guards "and says so"."""
    simulated = SimulatedRuntime(level(0.0), 0.15)
    text = Text(0, 0, [0], 100, Sampling(), selfspec.sampling.Chance(0), lambda _: False)
    loop = Loop(Context(simulated, simulated.new_cache(1, 100)), simulated.clock)
    loop.add([text], auto(look_up(WRONG)))
    while loop.texts:
        loop.turn()
    assert text.explanation["verdict"].startswith("speculation was off in every round: the best draft, ")
    assert text.explanation["choices"][0]["expected_tokens_per_second"] == pytest.approx(100.0, rel=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"adaptive": False}, "auto always adapts"),
        ({"candidates": "plain"}, "plain, which does not belong"),
        ({"candidates": "auto"}, "auto, which does not belong"),
        ({"candidates": "gram"}, "must be one of"),
        ({"candidates": "ngram:gama=2"}, "no option gama"),
        ({"candidates": 3}, "must be names"),
        ({"candidates": " "}, "name drafters to choose from"),
        ({"candidates": ()}, "name drafters to choose from"),
        ({"candidates": "early_exit:exit_layer=9"}, "exit layer is 9"),
    ],
)
def test_wrong_candidates_are_refused(options, words):
    """Guards the user's mistakes: one line, at once."""
    with pytest.raises(OptionError, match=words):
        drafters.create("auto", TINY, options)


def test_a_model_of_one_layer_has_no_exits():
    """Guards the default on any model; an exit that was asked for by name is an error."""
    one = tiny_runtime(num_layers=1).config
    assert [part.name for part in drafters.create("auto", one, {}).parts] == ["suffix"]
    with pytest.raises(OptionError, match="cannot draft for this model"):
        drafters.create("auto", one, {"candidates": "early_exit"})


def test_it_brings_what_its_candidates_bring():
    """Guards the report: bound through it, weights summed, predictions and sampled drafts of any of them."""
    target, light = tiny_core("int8"), tiny_core("int4")
    host = Host(target, {4: light})
    made = drafters.create("auto", target.config, {"candidates": "ngram,quantized"}, host)
    assert host.opened == [4]
    assert made.extra_bytes.weights == light.weight_bytes
    assert (made.uses_prediction, made.samples) == (True, True)
    without = drafters.create("auto", TINY, {"candidates": "early_exit:exit_layer=2"})
    assert not without.uses_prediction
    assert not drafters.create("auto", TINY, {"candidates": "suffix"}).samples


@pytest.mark.parametrize(
    ("options", "keeps", "draws"),
    [
        ({"candidates": "suffix,early_exit:exit_layer=2"}, True, False),
        ({"candidates": "suffix,early_exit:exit_layer=2", "repeatable": False}, True, True),
        ({"candidates": "layer_skip:skip=0", "repeatable": False}, False, True),
        ({"candidates": "suffix", "repeatable": False}, False, False),
    ],
)
def test_its_buffers_are_those_of_its_candidates(options, keeps, draws):
    """Guards the count: states where a candidate shares first layers, laws where drafts are drawn."""
    buffers = draft_buffers(TINY, drafters.create("auto", TINY, options), Sampling(1.0), 8)
    assert bool(buffers["hidden = gamma * d"]) == keeps
    assert bool(buffers["laws = gamma * V"]) == draws


def test_a_shorter_draft_keeps_what_is_said_of_its_tokens():
    """Guards predictions under the controller: they are counted also where a draft was cut."""
    draft = Draft((5, 6, 7), predicted=(0, 2), chances=(0.9, 0.8, 0.7))
    cut = chain_of(draft, 2)
    assert (cut.tokens, cut.predicted, cut.chances) == ((5, 6), (0,), (0.9, 0.8))


def test_a_prediction_needs_a_candidate_that_copies(tiny):
    """Guards the way from request to candidates: the text stays, and what nobody would read is refused."""
    engine = selfspec.load(tiny, draft="auto", runtime="torch", max_new_tokens=40, ignore_eos=True)
    plain = engine.generate("hello", draft="plain")
    assert engine.generate("hello", prediction=plain.token_ids).token_ids == plain.token_ids
    with pytest.raises(OptionError, match="prediction"):
        engine.generate("hello", prediction="x", candidates="early_exit")
