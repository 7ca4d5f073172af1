"""`selfspec tune` where everything is known: costs by a clock that only they move, agreement by a formula.

The best of all contenders is found by measuring every one of them; the search must come within 3 % of it, and look
at far fewer answers.
"""

from __future__ import annotations

import json

import pytest
from measure_doubles import LayeredRuntime

from selfspec.drafters.layer_skip import plan_without
from selfspec.engine import Engine
from selfspec.errors import OptionError
from selfspec.measure import profile as profiling
from selfspec.measure.contenders import Space, kind_of, shortlist
from selfspec.measure.pairs import Ratio
from selfspec.measure.profile import Question
from selfspec.measure.race import Track, ratio_of
from selfspec.measure.recorded import Prices, Recording, Tape, Voice, replayed
from selfspec.measure.settings import TuneOptions
from selfspec.measure.tasks import Prompt
from selfspec.measure.tuner import Tuner, Workload, split
from selfspec.measure.tuning import Decision, Tuning, decide, document_of
from selfspec.types import LayerPlan

QUESTIONS = [Question(f"q{i}", tuple(range(1 + 3 * i, 6 + 4 * i))) for i in range(4)]
WORKLOAD = Workload(QUESTIONS[:3], QUESTIONS[3:])
IDENTITY = dict.fromkeys(("selfspec", "model", "runtime", "runs_on", "precision", "machine"), "?")


@pytest.fixture
def tuned(clock, monkeypatch):
    """Run a search to its end."""
    monkeypatch.setattr(profiling, "measure_ceiling", lambda _: None)
    monkeypatch.setattr(profiling, "REPETITIONS", 2)

    def run(engine, units=None, **options):
        asked = {"max_new_tokens": 16, "gamma": 2, "budget": "99h", "finalists": 3} | options
        tuner = Tuner(engine, WORKLOAD, TuneOptions(**asked), {} if units is None else units, clock)
        names = [f"{stage.name}: {name}" for stage in tuner.stages() for name in stage.run()]
        return tuner, names

    return run


class Early(LayeredRuntime):
    """Exits from layer 2 on are right at nine places of ten."""

    def agrees(self, position, layer):
        return layer == self.config.num_layers or (layer >= 2 and position % 10 != 0)


def engine_of(runtime):
    return Engine(runtime, None, "known", draft="plain")


def measured(tuner, clock):
    """Every contender in pairs with plain decoding on all prompts, the exhaustive grid: S by draft."""
    track = Track(tuner.engine, WORKLOAD.tuning, tuner.options, {}, clock)
    for _ in track.run("grid", tuner.contenders, float("inf"), len(WORKLOAD.tuning)):
        pass
    found = {draft: ratio_of(list(track.laps.values()), draft, 0) for draft in tuner.contenders}
    return {draft: ratio.median for draft, ratio in found.items()}


SPACE = "suffix:min_match=2,early_exit,layer_skip,suffix>early_exit,auto"


@pytest.mark.parametrize(
    ("kind", "more", "options", "pays"),
    [
        (Early, 0.05, {"drafts": SPACE}, True),
        (Early, 1.0, {"drafts": "early_exit,auto"}, False),
        (Early, 0.05, {"drafts": "early_exit", "aim": "latency@2"}, True),
    ],
    ids=["an exit pays", "rows cost all", "two texts at once"],
)
def test_the_choice_is_the_best_of_all(tuned, clock, kind, more, options, pays):
    """Guards the whole search against the grid, and what is said where nothing pays. Of exits, stops and skip sets
    of one text the replay must expect what is then measured, to the last digit."""
    tuner, _ = tuned(engine_of(kind(clock, head=0.5, more=more)), **options)
    found = measured(tuner, clock)
    assert found[tuner.winner] >= 0.97 * max(found.values())
    exact = [d for d in found if kind_of(d) in ("early_exit", "layer_skip") and tuner.options.texts == 1]
    assert {draft: tuner.expected[draft] for draft in exact} == pytest.approx({d: found[d] for d in exact})
    document = document_of(tuner, IDENTITY, 0.0)
    assert document["pays"] is pays
    assert (max(found.values()) > 1.1) is pays, "else this world shows nothing"
    assert document["choice"]["draft"] == (tuner.winner if pays else "auto")
    assert ("Nothing pays" in document["recommendation"]) is not pays
    chosen = [row for row in document["contenders"] if row["stage"] == "chosen"]
    assert [row["draft"] for row in chosen] == [document["choice"]["draft"]]
    json.dumps(document, allow_nan=False)
    assert document["choice"]["draft"] in Tuning(document)._repr_html_()


def test_it_catches_a_replay_that_forgets_the_head(tuned, clock, monkeypatch):
    """The negative control of the test above: priced without its head, a wrong exit looks like the best."""
    free = Prices.__init__

    def without(self, plain, layer, rest, *others):
        free(self, plain, layer, 0.0, *others)

    monkeypatch.setattr(Prices, "__init__", without)
    tuner, _ = tuned(engine_of(Early(clock, head=8.0, more=0.05)), drafts="early_exit")
    exits = [gain for draft, gain in tuner.expected.items() if kind_of(draft) == "early_exit"]
    assert max(exits) > 1.3
    assert max(gain for draft, gain in measured(tuner, clock).items() if kind_of(draft) == "early_exit") < 1.1


def test_a_search_goes_on_where_it_was_stopped(tuned, clock):
    """Guards resumption: what was kept, as JSON, is not measured again, and gives the same."""
    engine, units = engine_of(Early(clock, head=0.5, more=0.05)), {}
    options = TuneOptions(max_new_tokens=16, gamma=2, budget="99h", finalists=3, drafts="early_exit,auto")
    stages = Tuner(engine, WORKLOAD, options, units, clock).stages()
    stopped = []
    for stage in stages:
        for name in stage.run():
            stopped.append(f"{stage.name}: {name}")
            if stage.name == "race" and len(units["race"]) == 4:
                break
        if len(units["race"]) == 4:
            break
    kept = json.loads(json.dumps(units))
    before = json.loads(json.dumps(kept))
    asked = {"drafts": "early_exit,auto", "finalists": 3}
    tuner, names = tuned(engine, kept, **asked)
    assert names
    assert not set(names) & set(stopped)
    for section in ("answers", "rounds", "exits", "screen", "choices"):
        assert kept[section] == before[section], section
    again, nothing = tuned(engine, json.loads(json.dumps(kept)), **asked)
    assert nothing == []
    assert again.winner == tuner.winner


def test_a_short_budget_ends_all_the_same(tuned, clock):
    """Guards slow machines: without time every stage does its least, nothing is decided, and auto is kept."""
    tuner, names = tuned(
        engine_of(Early(clock, head=0.5, more=0.05)), budget="0.001s", drafts="early_exit,suffix,auto"
    )
    document = document_of(tuner, IDENTITY, 0.0)
    assert len(names) < 20
    assert (document["pays"], document["choice"]["draft"]) == (False, "auto")
    assert document["left_out"]


def test_memory_goes_before_speed_where_half_of_the_gain_is_kept(tuned, clock):
    """Guards --for memory: the draft of fewest bytes that keeps half of the best gain, not the fastest."""
    tuner, _ = tuned(engine_of(Early(clock, head=0.5, more=0.05)), drafts="early_exit", aim="memory")
    laps = list(tuner.race.laps.values())
    gains = {draft: ratio_of(laps, draft, 0).median - 1.0 for draft in tuner.finalists}
    best = max(gains, key=gains.__getitem__)
    assert tuner.memory(tuner.winner)["bytes"] < tuner.memory(best)["bytes"]
    assert 0.0 < gains[best] / 2 <= gains[tuner.winner]


# -- the parts --------------------------------------------------------------------------------------------

FASTER, SLOWER, OPEN = Ratio(1.2, 1.15, 1.25, 9), Ratio(0.8, 0.75, 0.85, 9), Ratio(1.02, 0.9, 1.2, 9)


@pytest.mark.parametrize(
    ("own", "default", "kept"),
    [
        (FASTER, FASTER, Decision("suffix", True)),
        (FASTER, SLOWER, Decision("suffix", True)),
        (OPEN, FASTER, Decision("auto", True)),
        (OPEN, OPEN, Decision("auto", False)),
        (SLOWER, OPEN, Decision("auto", False)),
        (SLOWER, SLOWER, Decision("plain", False)),
        (OPEN, SLOWER, Decision("plain", False)),
        (Ratio(1.2, 1.15, 1.25, 6), None, Decision("auto", False)),
        (None, None, Decision("auto", False)),
    ],
)
def test_what_is_kept(own, default, kept):
    """Guards the decision: only a gain that the interval rule decides counts; plain only where auto loses."""
    assert decide("suffix", {"suffix": own, "auto": default}) == kept


def test_held_out_prompts_are_no_others():
    """Guards the split: every third, none of them in both halves, and no text that is there twice."""
    prompts = [Prompt("a", str(i), (text,)) for i, text in enumerate(["x", "y", "x ", "z", "w", "y", "v", "u"])]
    tuning, held = split(prompts)
    texts = [[prompt.turns[0].strip() for prompt in part] for part in (tuning, held)]
    assert sorted([*texts[0], *texts[1]]) == sorted("xyzwvu")
    assert len(held) == 2
    with pytest.raises(OptionError, match="two different prompts"):
        split([prompts[0], prompts[2]])


def test_one_of_each_kind_is_measured():
    """Guards diversity: the best of every kind near the top, then what is not known, a loser last."""
    expected = {
        "suffix": 1.2,
        "suffix:gamma=3": 1.19,
        "ngram": 1.15,
        "auto": 1.18,
        "early_exit": 0.6,
        "swift": None,
    }
    assert shortlist(expected, 9)[:4] == ["suffix", "auto", "ngram", "swift"]
    assert shortlist(expected, 2) == ["suffix", "auto"]
    assert shortlist(dict.fromkeys(["suffix", "suffix:gamma=3", "ngram", "auto"]), 3) == ["suffix", "ngram", "auto"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "must be one of"),
        ("suffix,plain", "compared with anyway"),
        ("suffix:gamma=x", "an integer"),
        ("suffix:depth=3", "no option depth"),
        ("suffix,suffix", "twice"),
    ],
)
def test_a_space_that_is_none(text, words):
    """Guards --drafts: what is wrong is said before a model is loaded."""
    with pytest.raises(OptionError, match=words):
        Space.of(text)


def test_a_recording_knows_what_it_does_not_know():
    """Guards replays: layers that nobody listened to, gaps and weights of their own give no number, and a resumed
    pass is the target's though a skip set ends with the same layers."""
    layers, config = 5, LayeredRuntime(None).config
    skips = plan_without("2", layers)  # ends with layers 3 and 4, as verification after exit 3 does
    n = 12
    voices = {LayerPlan.exit_at(layers, 3): Voice([True] * n, [0.9] * n), skips: Voice([False] * n, [0.9] * n)}
    tape = Tape((1, 2, 3), tuple(range(10, 10 + n)), False, voices)
    prices = Prices(1.0, 0.1, 0.5, (1.0, 1.1, 1.2))
    for draft in ("early_exit:exit_layer=2", "layer_skip:skip=(1)", "swift", "quantized"):
        assert replayed(draft, config, [tape], prices) is None, draft
    right = replayed("early_exit:exit_layer=3:gamma=2", config, [tape], prices)
    wrong = replayed("layer_skip:skip=(2):gamma=2", config, [tape], prices)
    assert (right.stats.acceptance_rate, wrong.stats.acceptance_rate) == (1.0, 0.0)
    assert Recording(config, [tape], prices).costs.v(3) > 1.0
    assert prices.rows(5) == pytest.approx(1.4)
    with pytest.raises(OptionError):
        replayed("nothing", config, [tape], prices)
