"""The drafters whose plan is searched while they write: `swift` and `conflayers`."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from doubles import Host, Keeping, run, tiny_hybrid, tiny_runtime
from test_skip_search import full_states, opened

from selfspec.drafters.conflayers import ConfLayers, ConfLayersOptions, LayerSearch, chosen, confidences, thresholds
from selfspec.drafters.proposals import Proposals
from selfspec.drafters.skip_search import matchness
from selfspec.drafters.swift import SetSearch, Swift, SwiftOptions, inner_steps
from selfspec.errors import OptionError
from selfspec.rounds import Commit
from selfspec.types import LayerPlan, Sampling

LAYERS = 8
TOKENS = [5, 17, 3, 3, 42, 8, 1, 30, 5, 17, 3, 9]


@pytest.fixture(scope="module")
def runtime():
    return tiny_runtime(num_layers=LAYERS)


# -- what a set is judged by ------------------------------------------------------------------------------


def test_matchness_is_the_share_of_tokens_that_a_draft_would_foretell(runtime):
    """Guards the places: each row where its token stands, after the full model's keys and values."""
    plan = LayerPlan.skipping(LAYERS, [2, 5], [3])
    tokens, right = list(TOKENS[:4]), [True, True, False, True, False, False, True, True]
    for is_right in right:
        state = full_states(runtime, plan, tokens, len(tokens) - 1)
        told = int(np.asarray(runtime.logits(state)).argmax())
        tokens.append(told if is_right else (told + 1) % 61)
    context, text = opened(runtime, tokens)
    before = context.row_layers[0]
    assert matchness(context, text, plan, 7) == pytest.approx(np.mean(right[1:]))
    assert context.row_layers[0] - before == 7 * plan.row_layers
    said = run(runtime, [TOKENS[:4]], new_tokens=12)[0].tokens
    context, text = opened(runtime, said)
    assert matchness(context, text, context.full, 10) == 1.0  # the model foretells its own words


def test_confidences_are_those_of_what_each_part_adds(runtime):
    """Guards the scoring pass of ConfLayers, at true positions, by definition."""
    context, text = opened(runtime, TOKENS)
    got = confidences(context, text, 3)
    before = context.row_layers[0]
    want = np.zeros(LAYERS)
    for layer in range(LAYERS):
        for part in ("attention", "mlp"):
            entropies = []
            for place in range(8, 11):
                ends = []
                for stop in (0, 1):
                    kept = [s for s in context.full.steps if s < (layer, part) or (stop and s == (layer, part))]
                    without = [s for s in context.full.steps if s not in kept]
                    state = full_states(runtime, LayerPlan.without(LAYERS, without), TOKENS, place)
                    ends.append(np.asarray(state, float)[0])
                law = np.exp(ends[1] - ends[0])
                law /= law.sum()
                entropies.append(-(law * np.log(law)).sum())
            want[layer] += 1 - np.mean(entropies) / math.log(32)
    assert got == pytest.approx(want, abs=1e-9)
    confidences(context, text, 3)
    assert context.row_layers[0] - before == 3 * LAYERS


def test_thresholds_follow_the_published_formula():
    """Guards windows and neighbourhoods, against the formula written out layer by layer."""
    values = np.asarray([0.9, -1.2, 0.1, 0.4, -0.3, 1.5, -1.4])
    layers, strictness = 9, 0.2
    first = [(values[min(i + 1, 6)] - values[max(i - 1, 0)]) / (2 if 0 < i < 6 else 1) for i in range(7)]
    second = np.asarray([(first[min(i + 1, 6)] - first[max(i - 1, 0)]) / (2 if 0 < i < 6 else 1) for i in range(7)])
    scaled = (second - second.min()) / (second.max() - second.min())
    mean = scaled.mean()
    slope = min(0.5 / (scaled.max() - mean), 0.5 / (mean - scaled.min()))
    shifted = 0.5 + slope * (scaled - mean)
    want = []
    for i in range(7):
        width = 2 + int(5 * 1 * shifted[i] * (i + 1) / layers)  # the first two differences differ: one is equal
        near = [values[j] for j in range(7) if j != i and abs(j - i) <= width // 2]
        want.append(np.mean(near) - strictness * np.std(near))
    assert thresholds(values, layers, strictness) == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("start", [-1.0, 0.0, 3.0])
def test_strictness_moves_until_the_share_is_within_its_bounds(start):
    """Guards the adaptive bounds, from a λ that skips too many and from one that skips too few."""
    confidence = np.random.default_rng(3).random(30)
    layers, strictness = chosen(confidence, 0.4, start)
    assert 0.4 <= len(layers) / 28 <= 0.65
    assert set(layers) <= set(range(1, 29))
    assert abs((strictness - start) / 0.05 - round((strictness - start) / 0.05)) < 1e-6
    assert chosen(np.ones(30), 0.4, 0.0)[0] == []  # nothing to tell apart: an end, and no layer


# -- proposals and the end of a search --------------------------------------------------------------------


def test_proposals_have_one_size_and_the_optimiser_learns():
    """Guards ask and tell: random sets are told too, and what is asked prefers what scored."""
    steps = inner_steps(LAYERS)
    good = set(steps[:5])

    def mean_hits(bayes_interval):
        proposals, hits = Proposals(steps, 5, bayes_interval, seed=0), []
        for _ in range(60):
            skipped = proposals.next()
            assert len(set(skipped)) == 5
            assert list(skipped) == sorted(skipped, key=steps.index)
            hits.append(len(good.intersection(skipped)))
            proposals.tell(skipped, hits[-1] / 5)
        return np.mean(hits[30:])

    assert mean_hits(1) > mean_hits(1000) + 0.7  # chance gives 25 / 12 of five


def scored(monkeypatch, scores, **options):
    """A search whose trials score what is given, as many as it makes."""
    given = iter(scores)
    monkeypatch.setattr("selfspec.drafters.swift.matchness", lambda *_: next(given))
    search = SetSearch(SwiftOptions(**options), LAYERS)
    while search.due():
        search.advance(None, None)
    return search


def test_a_search_ends_by_its_rules(monkeypatch):
    """Guards enough, patience and the budget; a set that scored once is not enough."""
    assert scored(monkeypatch, [0.5, 0.6, 0.97, 0.95, 0.9, 0.9], enough=0.9).trials == 4
    assert scored(monkeypatch, [0.97, 0.5, 0.2, 0.5] + [0.1] * 90, enough=0.93, max_trials=20).trials == 20
    search = scored(monkeypatch, [0.5] + [0.4] * 90, patience=7)
    assert search.trials == 8
    assert search.score == pytest.approx((0.5 + 4 * 0.4) / 5)  # the leader has been asked again each other time


def test_a_lucky_set_does_not_stay(monkeypatch):
    """Guards the comparison over moving windows: what scored well once is asked again."""
    search = scored(monkeypatch, [1.0, 0.3, 0.6, 0.2, 0.1, 0.6], enough=1.0, max_trials=6)
    assert search.score == pytest.approx(0.6)
    assert len(search.plan.left_out) == int(12 * 0.45)


def fed(search, accepted, drafted=5):
    search.observe(Commit(0, (), (1,) * drafted, accepted, None))


def test_conflayers_judges_its_sets_by_their_drafts():
    """Guards the outer loop: half an interval for what fails, the best one at the end, or a set that is enough."""

    def plans(search, number):
        search.plan, search.trials, search._wants = LayerPlan.skipping(LAYERS, [number], [number]), number, False
        search._counts[:] = 0

    search = LayerSearch(ConfLayersOptions(interval=4, max_trials=3), LAYERS)
    assert search.due()
    for number, accepted, rounds in ((1, 3, 4), (2, 0, 2), (3, 2, 4)):
        plans(search, number)
        for i in range(rounds):
            assert not search.due(), i
            fed(search, accepted)
        assert search.due() == (number < 3)
    assert search.plan == LayerPlan.skipping(LAYERS, [1], [1])
    good = LayerSearch(ConfLayersOptions(interval=4), LAYERS)
    plans(good, 1)
    for _ in range(4):
        fed(good, 5)
    assert not good.due()
    assert good.plan == LayerPlan.skipping(LAYERS, [1], [1])


# -- in the loop ------------------------------------------------------------------------------------------


SEARCHING = {
    "swift": (Swift, SwiftOptions(window=6, gamma=1, confidence=0.0, enough=1.0), 6 * 5.5),
    "conflayers": (ConfLayers, ConfLayersOptions(window=6, interval=2, gamma=1, confidence=0.0), 6 * 8),
}


@pytest.mark.parametrize("name", SEARCHING)
def test_a_search_is_counted_as_drafting_and_waits_for_its_window(runtime, name):
    """Guards every figure: rows of the search are in the round that made them; none run too soon or too late."""
    kind, options, each = SEARCHING[name]
    drafter, host, rounds = kind(options, runtime.config), Keeping(runtime), []
    drafter.bind(host)
    (search,) = host.memory.values()
    first = search.plan

    def each_round(context, texts, round_):
        (commit,) = round_.commits
        aside = commit.draft_row_layers - commit.drafted * drafter.plan.row_layers
        rounds.append((len(texts[0].tokens) - len(TOKENS) - len(commit.tokens), aside))
        assert drafter.plan == search.plan  # what is found drafts at once

    run(runtime, [TOKENS], drafter, new_tokens=24, each_round=each_round)
    # more tokens than the window before it, as many cells as its rows beyond; the last round has no draft
    possible = [said for said, _ in rounds if 6 < said <= 24 + 1 - 6]
    searched = [said for said, aside in rounds if aside]
    assert searched == possible if name == "swift" else len(searched) >= 2 and set(searched) <= set(possible)
    assert all(aside == each for _, aside in rounds if aside)
    assert searched[0] == possible[0]
    assert max(said for said, _ in rounds) > 24 + 1 - 6
    assert search.plan != first


def test_what_is_known_outlives_a_text_and_belongs_to_its_options(runtime):
    """Guards `Host.kept`: the second request goes on; another window is another search; γ is not."""

    host, trials = Keeping(runtime), []
    for options in ({"window": 4}, {"window": 4, "gamma": 2, "siblings": 1}, {"window": 5}):
        drafter = Swift(SwiftOptions(confidence=0.0, **options), runtime.config)
        drafter.bind(host)
        run(runtime, [TOKENS], drafter, new_tokens=24)
        trials.append([search.trials for search in host.memory.values()])
    assert len(trials[0]) == len(trials[1]) == 1
    assert 0 < trials[0][0] < trials[1][0]
    assert len(trials[2]) == 2
    assert trials[2][0] == trials[1][0]


@pytest.mark.parametrize("name", ["swift", "conflayers"])
def test_a_seed_gives_plain_decodings_text_whatever_was_learned(runtime, name):
    """Guards sampled texts: drafts are deterministic, so what an earlier text taught changes no token."""
    sampling = Sampling(1.0)
    want = run(runtime, [TOKENS], new_tokens=20, sampling=sampling, seed=4)[0].tokens
    options = {"window": 3, "confidence": 0.0, "gamma": 3}
    assert run(runtime, [TOKENS], name, options, new_tokens=20, sampling=sampling, seed=4)[0].tokens == want


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SwiftOptions(skip_ratio=0.0), "skip_ratio is 0.0; it must be a share above 0"),
        (lambda: SwiftOptions(window=0), "window is 0; it must be 1 to 256"),
        (lambda: SwiftOptions(enough=1.5), "enough is 1.5"),
        (lambda: SwiftOptions(bayes_interval=0), "bayes_interval is 0; it must be at least 1"),
        (lambda: ConfLayersOptions(interval=1), "interval is 1; it must be at least 2 rounds"),
        (lambda: ConfLayersOptions(max_trials=0), "max_trials is 0"),
        (lambda: Swift(SwiftOptions(skip_ratio=0.05), tiny_runtime().config), "none of the 6 .* at least 0.17"),
        (
            lambda: Swift(SwiftOptions(), tiny_runtime(num_layers=3).config),
            "this model has 3 layers; swift .* needs 4",
        ),
        (lambda: ConfLayers(ConfLayersOptions(), tiny_hybrid("conv").config), "conflayers runs rows aside"),
    ],
)
def test_wrong_options_are_one_line(make, words):
    """Guards the user's mistake."""
    with pytest.raises(OptionError, match=words):
        make()


def test_without_optuna_swift_says_what_to_install(runtime, monkeypatch):
    """Guards the extra: one line before any text begins; conflayers needs none."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(OptionError, match="pip install 'selfspec\\[search\\]'"):
        Swift(SwiftOptions(), runtime.config).bind(Host(runtime, {}))
    ConfLayers(ConfLayersOptions(), runtime.config).bind(Host(runtime, {}))
