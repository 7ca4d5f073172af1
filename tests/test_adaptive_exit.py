"""Early exits that follow the text: what shadow tokens teach, what is chosen, and that no text changes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from doubles import TINY, run, tiny_runtime
from simulated import CONFIG, SimulatedRuntime, best_fixed, right_token, speed
from test_lossless import PROMPT, Counting
from wild_drafters import Climber

from selfspec import control, drafters
from selfspec.drafters.adaptive_exit import AdaptiveExit
from selfspec.drafters.buffers import draft_buffers
from selfspec.drafters.early_exit import EarlyExit, EarlyExitOptions
from selfspec.drafters.shadow import Choice, ExitControl, ExitCosts, Ladder, Shadow
from selfspec.errors import OptionError
from selfspec.measure.laws import loop_law, plain_law, total_variation
from selfspec.measure.toy import MarkovRuntime
from selfspec.sampling import distribution
from selfspec.types import LayerPlan, Sampling

# -- the cost model ---------------------------------------------------------------------------------------


def rate_by_enumeration(costs, rungs, holds, gamma):
    """Tokens ÷ time of a round, over all ways in which its steps can end: (rung, holds), or stopped."""
    whole = costs.layers + costs.head
    ways = [
        (layer, i + 1, chance * share, held, False)
        for i, (layer, chance) in enumerate(rungs)
        for held, share in ((True, holds[i]), (False, 1.0 - holds[i]))
    ]
    ways.append((rungs[-1][0], len(rungs), 1.0 - sum(chance for _, chance in rungs), False, True))
    tokens = time = 0.0
    for round_ in product(ways, repeat=gamma):
        weight, drafted, accepted, spent, is_over, is_right = 1.0, 0, 0, 0.0, False, True
        for layer, heads, chance, held, stops in round_:
            weight *= chance
            if is_over:
                continue
            spent += layer + heads * costs.head
            is_over, is_right = stops, is_right and held
            drafted, accepted = drafted + (not stops), accepted + is_right
        tokens += weight * (1 + accepted)
        time += weight * (spent + costs.row * drafted * whole)
    return tokens, time, whole


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_the_rate_of_a_ladder_is_that_of_all_its_rounds(gamma):
    """Guards E and the draft's time against enumeration; what verification resumes has no dice in it."""
    costs = ExitCosts(16, 3.0, 0.2)
    rungs, holds = [(2, 0.5), (6, 0.3)], (0.9, 0.7)
    tokens, time, whole = rate_by_enumeration(costs, rungs, holds, gamma)
    reached = 2 * 0.5 + 6 * 0.5
    rows = sum(0.8**i for i in range(1, gamma + 1))
    time += whole - costs.row * rows * reached  # rows below the exits were paid for by the draft
    right = sum(chance * hold for (_, chance), hold in zip(rungs, holds, strict=True))
    assert list(costs.rates(rungs, right, gamma))[-1] == pytest.approx(tokens / (time / whole), rel=1e-12)


def test_one_exit_that_never_stops_is_the_textbooks():
    """Guards the agreement with `selfspec estimate`."""
    costs = ExitCosts(30, 7.5, 0.15)
    c, f = control.draft_cost(30, 8, 0.2), control.shared_share(30, 8, 0.2)
    got = list(costs.rates([(8, 1.0)], 0.7, 6))
    want = [control.speedup(0.7, gamma, c, 1.0 + 0.15 * gamma, f) for gamma in range(1, 7)]
    assert got == pytest.approx(want, rel=1e-12)


# -- learning and choosing --------------------------------------------------------------------------------


def taught(rows, candidates=(2, 4, 8), climbed=()):
    found = ExitControl(candidates, ExitCosts(16, 2.0, 0.1))
    for row in rows:
        found.learn(row, climbed)
    return found


def shadows(random, alphas, count=400, is_telling=True):
    """Rows in which each exit is right so often; where ``is_telling``, confidence says when."""
    for _ in range(count):
        rights = {layer: float(random.random() < alpha) for layer, alpha in alphas.items()}
        yield {k: Shadow(0.6 + 0.3 * right * is_telling, right) for k, right in rights.items()}


RANDOM = np.random.default_rng(0)
CHOICES = {
    "nothing is right": ({2: 0.0, 4: 0.02, 8: 0.05}, False, {()}),
    "a late exit is": ({2: 0.1, 4: 0.2, 8: 0.98}, False, {(8,)}),
    "an early one is": ({2: 0.9, 4: 0.9, 8: 0.95}, False, {(2,)}),
    "the early one knows when": ({2: 0.6, 4: 0.6, 8: 0.97}, True, {(2, 8), (2,)}),
}


@pytest.mark.parametrize("case", CHOICES)
def test_what_pays_is_chosen(case):
    """Guards the choice: plain decoding, one exit, or a ladder whose first rung knows when it is right."""
    alphas, is_telling, wanted = CHOICES[case]
    choice = taught(shadows(RANDOM, alphas, is_telling=is_telling)).choose(7)
    assert choice.ladder.layers in wanted
    assert (choice.gamma > 0) == (choice.rate > 1.0) == bool(choice.ladder.layers)


def test_a_threshold_lies_between_right_and_wrong():
    """Guards DEL's threshold: half-way between the two means."""
    found = taught([{4: Shadow(0.8, 1.0)}, {4: Shadow(0.3, 0.0)}] * 200, (4,))
    assert found.threshold(4) == pytest.approx(0.55, abs=0.01)


def test_rows_that_nobody_looked_at_bias_no_other_exit():
    """Guards partial knowledge: a later exit that is asked where the first was unsure is not judged by that."""
    rows = [{2: Shadow(0.9, 1.0)}, {2: Shadow(0.2, 0.0), 8: Shadow(0.5, 0.0)}] * 50
    found, fresh = taught(rows, climbed=(2, 8)), taught([])
    assert found.threshold(8) == fresh.threshold(8)
    for ladder, tally in found._tallies.items():
        assert (tally == fresh._tallies[ladder]) == (ladder.layers not in {(2, 8), (2,)})
    both = found._tallies[Ladder((2, 8), stops=False)]
    assert both.left[0] == pytest.approx(both.left[1], rel=0.1)


# -- in a world of known costs ----------------------------------------------------------------------------


class Sure(SimulatedRuntime):
    """Exits that are less confident where they are wrong."""

    def logits(self, hidden):
        found = super().logits(hidden)
        right = [right_token(place + 1) for place in hidden[:, 0].astype(int).tolist()]
        found[found.argmax(axis=1) != right] *= 0.4
        return found


WORLDS = {
    "nothing is right": (SimulatedRuntime, lambda *_: 0.0, 0.9),
    "good from layer 4 on": (SimulatedRuntime, lambda _, k: 0.9 if k >= 4 else 0.4, 0.9),
    "good from layer 8 on": (SimulatedRuntime, lambda _, k: 0.97 if k >= 8 else 0.2, 0.9),
    "exits turn bad": (SimulatedRuntime, lambda place, _: 0.0 if (place // 250) % 2 else 0.9, 1.0),
    "they know when": (Sure, lambda _, k: 0.97 if k >= 8 else 0.6, 1.2),
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_speed_is_that_of_the_best_exit(world):
    """Guards the whole: close to the best fixed exit and γ, the head of all shadow tokens included, or better."""
    make, alpha, least = WORLDS[world]
    options = {"exit_layer": "adaptive", "exits": "2,4,8", "gamma": 7, "row_price": 0.1}
    simulated = make(alpha)
    rate, _, _ = speed(simulated, drafters.create("early_exit", CONFIG, options), 1000)
    assert rate > least * best_fixed(alpha, lambda _: 1.0, 0.1, lambda _: 0.0, 1000)


def test_shadow_tokens_are_counted(monkeypatch):
    """Guards the row-layers: no layer twice, whatever the ladder; each look at an exit that the draft passed by or
    did not leave by costs a head."""
    heads, seen, behind, runtime = [], [], [], tiny_runtime(seed=2)
    counted, size = Counting(runtime), TINY.head_parameters / TINY.active_layer_parameters
    logits, climb = counted.logits, AdaptiveExit._raise_to
    monkeypatch.setattr(counted, "logits", lambda hidden: heads.append(len(hidden)) or logits(hidden))

    def climbed(self, context, climbs, layers):
        behind.extend(len(one.behind(layers[1])) for one in climbs)
        climb(self, context, climbs, layers)

    monkeypatch.setattr(AdaptiveExit, "_raise_to", climbed)

    def check(_context, _texts, round_):
        truth, asked = counted.take(), sum(heads)
        heads.clear()
        if round_.index:
            (commit,) = round_.commits
            assert truth == (commit.drafted + 1) * 5
            extra = (round_.draft_row_layers + round_.verify_row_layers - truth) / size
            # verification reads one for each row, a draft step its own, also where it ends the draft
            own = asked - 2 * commit.drafted - 1
            seen.append((round(extra, 9), own))

    run(counted, [PROMPT], Climber(TINY, [], gamma=3, exits="1,2,4", shadows=2), new_tokens=60, each_round=check)
    assert all(extra in {own, own - 1} for extra, own in seen)
    assert max(extra for extra, _ in seen) >= 3
    assert max(behind) >= 3  # rows that left early went along when a later one did not


@pytest.mark.parametrize("sampling", [Sampling(0.9, coupled=True, repetition_penalty=1.5), Sampling(1.1, top_k=5)])
def test_a_shadow_token_is_right_where_the_target_takes_it(sampling, monkeypatch):
    """Guards what is learned where laws depend on place and prefix: of an exit that drafted, what came of it."""

    class Third(ExitControl):
        """Always leaves at layer 3."""

        def learn(self, row, climbed=()):
            said[-1].append(row[3].right)

        def choose(self, most):
            return Choice(Ladder((3,)), most, 1.0)

    said, rounds, learn = [], [], AdaptiveExit._learn
    monkeypatch.setattr(AdaptiveExit, "_learn", lambda *given: said.append([]) or learn(*given))
    drafter = AdaptiveExit(EarlyExitOptions(exit_layer="adaptive", exits="3,4", gamma=3), TINY)
    monkeypatch.setattr(drafter, "control", lambda: Third(drafter.candidates, drafter._costs))
    run(
        tiny_runtime(),
        [PROMPT],
        drafter,
        new_tokens=80,
        sampling=sampling,
        each_round=lambda *r: rounds.append(r[-1]),
    )
    held = [[1.0] * c.accepted + [0.0] * (c.accepted < c.depth) for r in rounds[1:-1] for c in r.commits]
    said = [rights[: len(came)] for rights, came in zip(said, held, strict=True)]  # then comes the bonus' row
    assert 0.2 < np.concatenate(held).mean() < 0.95
    if sampling.coupled:
        assert said == held
    else:
        assert np.concatenate(said).mean() == pytest.approx(np.concatenate(held).mean(), abs=0.12)


# -- losslessness -----------------------------------------------------------------------------------------


LADDERS = [None, Ladder((1, 2), stops=False), Ladder((1, 2), stops=True)]  # None: the one that is chosen


def distance(seed, monkeypatch):
    """Total variation between plain decoding and sampled drafts with adaptive exits, over all outcomes."""
    if (ladder := LADDERS[seed % 3]) is not None:
        monkeypatch.setattr(ExitControl, "choose", lambda _, most: Choice(ladder, most, 1.0))
    random = np.random.default_rng(seed)
    runtime = MarkovRuntime(3, 3, seed=seed)
    sampling = Sampling(float(random.choice([0.5, 1.0, 2.0])), top_k=int(random.choice([0, 2])))
    options = {"exit_layer": "adaptive", "exits": "1,2", "gamma": int(random.choice([1, 2, 3])), "row_price": 0.0}
    options["siblings"] = seed // 3 % 2
    hidden, _ = runtime.run(runtime.embed(range(3)), LayerPlan.full(3), None, None)
    want = plain_law(lambda tokens: hidden[tokens[-1]].copy(), [0], 4, sampling)
    return total_variation(want, loop_law(runtime, ([0], 4), sampling, _sharp(runtime, options)))


def _sharp(runtime, options):
    """Thresholds such as confidences of three tokens can clear or not, and a head that costs little."""
    drafter = drafters.create("early_exit", runtime.config, options)
    drafter._costs = ExitCosts(3, 0.1, 0.0)
    return drafter


@pytest.mark.parametrize("seed", range(6))
def test_sampled_texts_have_the_plain_law(seed, monkeypatch):
    """Guards leaving, stopping and choosing: they see nothing of the numbers that are still to be drawn."""
    assert distance(seed, monkeypatch) < 1e-12


def test_it_catches_an_exit_that_looks_at_the_drawn_token(monkeypatch):
    """The negative control: who draws first, and climbs on where that token is unlikely, biases the text."""
    grow = AdaptiveExit._grow

    def clears(_self, climb, row, layer):
        law = distribution(climb.said[row, layer], climb.text.sampling, climb.text.prefix(climb.comb.tokens))
        climb.drawn = (climb.text.chance.pick(law), law)
        return law.probability(climb.drawn[0]) >= 0.4

    def with_that_token(self, chain, logits, *_):
        if not chain.cleared:
            return grow(self, chain, logits)
        token, law = chain.drawn
        chain.comb.add(token, [], [law])
        return True

    monkeypatch.setattr(AdaptiveExit, "_clears", clears)
    monkeypatch.setattr(AdaptiveExit, "_grow", with_that_token)
    assert distance(1, monkeypatch) > 1e-3


def test_a_seed_gives_one_text():
    """Guards repeatability: nothing that is chosen depends on a clock, or on texts before."""
    texts = [
        run(
            tiny_runtime(),
            [PROMPT],
            "early_exit",
            {"exit_layer": "adaptive", "gamma": 3, "row_price": 0.0},
            sampling=Sampling(0.8),
            seed=5,
        )[0].tokens
        for _ in range(2)
    ]
    assert texts[0] == texts[1]


# -- options ----------------------------------------------------------------------------------------------


def test_candidates_and_what_runs():
    """Guards the defaults, layers given as text, and what people are told."""
    made = drafters.create("early_exit", CONFIG, {"exit_layer": "adaptive"})
    assert isinstance(made, AdaptiveExit)
    assert (made.candidates, made.runs, made.plan) == ((2, 4, 8, 12), "exit 2,4,8,12/16", None)
    held = draft_buffers(CONFIG, made, Sampling(), 8)
    assert held["exits = 4 * (gamma + 1) * (d + V)"] == 4 * 5 * (2 + 16) * 8
    fixed = drafters.create("early_exit", CONFIG, {"exit_layer": "3"})
    assert isinstance(fixed, EarlyExit)
    assert str(fixed.plan) == "exit 3/16"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exit_layer": "middle"}, "exit_layer is 'middle'; it must be an integer, or adaptive"),
        ({"exit_layer": True}, "exit_layer is True"),
        ({"exit_layer": 2.5}, "exit_layer is 2.5"),
        ({"exits": "2,4"}, "exits is '2,4', which only exit_layer=adaptive reads; leave it out"),
        ({"exit_layer": "adaptive", "confidence": 0.5}, "confidence is 0.5, but with exit_layer=adaptive"),
        ({"exit_layer": "adaptive", "adaptive": True}, "adaptive is True"),
        ({"exit_layer": "adaptive", "exits": "2;4"}, "exits is '2;4'; it must be layers with commas"),
        ({"exit_layer": "adaptive", "exits": "2,16"}, "exit layer is 16; this model has 16 layers"),
        ({"exit_layer": "adaptive", "shadows": 0}, "shadows is 0; it must be at least 1 round"),
        ({"exit_layer": "adaptive", "row_price": 1.5}, "row_price is 1.5; it must be from 0"),
    ],
)
def test_what_cannot_be_is_one_line(options, words):
    """Guards the user's mistake."""
    with pytest.raises(OptionError, match=words) as error:
        drafters.create("early_exit", CONFIG, options)
    assert "\n" not in str(error.value)


def test_auto_chooses_exits_itself():
    """Guards a controller under a controller, which would both learn from half of the rounds."""
    with pytest.raises(OptionError, match="auto chooses among exits itself"):
        drafters.create("auto", CONFIG, {"candidates": "early_exit:exit_layer=adaptive"})
    assert EarlyExitOptions().candidates(2) == (1,)
