"""Predictions on a model of known costs and known agreement: they must be exact, and each part must matter."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from measure_doubles import LayeredRuntime

from selfspec import control
from selfspec.engine import Engine
from selfspec.errors import OptionError
from selfspec.measure import profile as profiling
from selfspec.measure.forecast import alpha_for
from selfspec.measure.profile import Profile, Question
from selfspec.measure.round_costs import Probe, RoundCosts, grid_exits, grid_gammas
from selfspec.measure.settings import ProfileOptions

QUESTIONS = [Question(f"q{i}", tuple(range(1, 4 + 5 * i))) for i in range(3)]
POINTS = ((1, 1), (1, 3), (2, 4), (3, 1), (3, 3), (3, 5), (4, 1), (4, 2), (4, 3), (4, 5))


@pytest.fixture
def layered(clock):
    return lambda **costs: Engine(LayeredRuntime(clock, **costs), None, "layered", draft="plain")


@pytest.fixture
def profiled(clock, monkeypatch):
    """Run a profile to its end; the machine's ceilings are made up, since they have a clock of their own."""
    monkeypatch.setattr(profiling, "measure_ceiling", lambda _: None)
    monkeypatch.setattr(profiling, "REPETITIONS", 3)

    def run(engine, units=None, **options):
        asked = {"max_new_tokens": 40, "temperature": "0", "gamma": 5, "contexts": "8", "check": 2, "pairs": 3}
        asked |= {"budget": "999h"} | options
        found = Profile(engine, QUESTIONS, ProfileOptions(**asked), {} if units is None else units, clock)
        names = [name for section in found.sections() for name in section.run()]
        return found, names

    return run


def spelled(points):
    return ",".join(f"{k}:{gamma}" for k, gamma in points)


def test_predictions_are_exact_where_costs_and_agreement_are_known(layered, profiled):
    """Guards the whole: grid, interpolation, replay and formula of a round against S of the real loop, on and off
    the grid; both readings are of one clock that only costs move."""
    found, _ = profiled(layered(), points=spelled(POINTS))
    checks = found.report().document()["checks"]
    assert {(check["exit_layer"], check["gamma"]) for check in checks} >= set(POINTS)
    for check in checks:
        assert check["predicted"] == pytest.approx(check["measured"]["median"], rel=1e-9)
        assert check["equal_answers"] == check["measured"]["pairs"] == 3
        assert abs(check["error"]) < 1e-9
    assert len({round(check["predicted"], 3) for check in checks}) > 6, "points must differ"


@pytest.mark.parametrize("forgotten", ["head", "resumed row"])
def test_a_prediction_without_one_part_of_a_round_would_be_wrong(layered, profiled, forgotten):
    """The negative control of the test above: the same replay, with rounds priced without the head or the last
    draft token's row through the shallow layers, misses what is measured by far more than 10 %."""
    engine = layered()
    found, _ = profiled(engine, points="3:2")
    report = found.report()
    (check,) = (c for c in report.document()["checks"] if (c["exit_layer"], c["gamma"]) == (3, 2))
    cost, head = engine.runtime.cost, forgotten != "head"
    resumed = cost(3, 0) if forgotten != "resumed row" else 0.0
    spent = 2 * cost(3, head) + resumed + cost(2, head, rows=3)
    whole = report.costs["0"].rounds[2, 2]
    predicted = check["predicted"] * whole / (spent / cost(5, head))
    assert abs(predicted / check["measured"]["median"] - 1.0) > 0.1
    right = 2 * cost(3, 1) + cost(3, 0) + cost(2, 1, rows=3)
    assert whole == pytest.approx(right / cost(5, 1))


def test_costs_by_layer_are_a_line_with_the_head_as_its_rest(layered, profiled, clock):
    """Guards c and f: by hand from the known costs."""
    engine = layered(layer=2.0, head=6.0)
    costs = profiled(engine)[0].report().costs["0"]
    plain = 5 * 2.0 + 6.0
    assert costs.plain_seconds == pytest.approx(plain)
    assert [costs.c(k) * plain for k in (1, 2, 3, 4)] == pytest.approx([8.0, 10.0, 12.0, 14.0])
    assert costs.line == pytest.approx((2.0 / plain, 6.0 / plain))
    assert costs.f(3) == pytest.approx(6.0 / plain)


def test_v_and_break_even(layered, profiled):
    """Guards v(T) and the acceptance that pays: at that α the formula gives S = 1."""
    found, _ = profiled(layered(more=0.1))
    document = found.report().document()
    (passes,) = document["passes"]
    assert passes["v"] == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    costs = found.report().costs["0"]
    for point in document["points"]["0"]:
        k, gamma, alpha = point["exit_layer"], point["gamma"], point["break_even_alpha"]
        if alpha is not None:
            assert control.expected_tokens(alpha, gamma) == pytest.approx(costs.rounds[k - 1, gamma])
    assert alpha_for(3.1, 2) is None, "no acceptance rate makes up for a round of more than γ + 1"
    assert alpha_for(1.0, 3) == pytest.approx(0.0, abs=1e-9)


def test_alpha_by_layer_is_how_often_the_exit_agrees(layered, profiled):
    """Guards α by layer and by position against the double's own rule."""
    engine = layered()
    found, _ = profiled(engine)
    agrees = engine.runtime.agrees
    # the token at index i of the answer follows the row at position len(prompt) + i - 1
    places = [len(q.prompt) + i - 1 for q in QUESTIONS for i in range(1, 40)]
    for row in found.report().document()["exits"]["0"]:
        k = row["exit_layer"]
        assert row["alpha"] == pytest.approx(statistics.mean(agrees(place, k) for place in places), abs=1e-5)
        assert all(rate is None or 0.0 <= rate <= 1.0 for rate in row["alpha_by_position"])


def test_what_is_there_is_not_measured_again(layered, profiled, clock):
    """Guards resumption: a second run finds everything; one more pair measures one more pair."""
    engine, units = layered(), {}
    first, names = profiled(engine, units, pairs=2)
    assert len(names) == 1 + 3 + 3 + 3 + 2 * 2, "the machine, passes, answers, rounds, pairs of two points"
    before = clock()
    second, again = profiled(engine, units, pairs=2)
    assert (again, clock()) == ([], before)
    assert second.report().document() == first.report().document()
    _, more = profiled(engine, units, pairs=3)
    assert [name.partition(" ")[2] for name in more] == ["2", "2"]


def test_a_small_budget_leaves_out_the_rest_and_says_so(layered, profiled):
    """Guards --budget: every section has one unit, and what is missing is counted; a later run goes on."""
    engine, units = layered(), {}
    short, names = profiled(engine, units, budget="1s", contexts="8,20000")
    assert len(names) == 5
    assert short.left_out == {
        "contexts": "20000: beyond the model's context",
        "passes": "1 of 3 within the budget",
        "answers": "1 of 3 within the budget",
        "rounds": "1 of 3 within the budget",
        "checks": "1 of 6 within the budget",
    }
    assert len(short.report().document()["checks"]) == 1
    whole, _ = profiled(engine, units, contexts="8,20000")
    assert set(whole.left_out) == {"contexts"}


def test_a_machine_that_slows_down_changes_no_ratio(layered, clock):
    """Guards the grid against drift: plain rounds beside every exit, not once for all.

    Here everything gets slower by 0.2 % with every pass; against the first plain round alone, points would be
    off by a third.
    """
    engine, spent = layered(), [0]
    steady = Probe(engine, [1, 2, 3], 4, 0.0, clock).grid((1, 4), (1, 4))
    right = clock.spend

    def slower(seconds):
        spent[0] += 1
        right(seconds * 1.002 ** spent[0])

    clock.spend = slower
    drifting = Probe(engine, [1, 2, 3], 4, 0.0, clock).grid((1, 4), (1, 4))
    assert 1.002 ** spent[0] > 1.3
    assert np.allclose(drifting["stages"], steady["stages"], rtol=0.1)


def test_a_check_compares_the_prediction_with_the_median_of_its_pairs(layered, profiled):
    """Guards the error that is printed: made-up times give what was made up."""
    engine, units = layered(), {}
    found, _ = profiled(engine, units, check=0, points="3:2")
    for unit in units["checks"].values():
        unit["tpot_seconds"], unit["is_equal"] = [1.0, 0.5], False
    (check,) = found.report().document()["checks"]
    assert check["measured"]["median"] == 2.0
    assert check["error"] == pytest.approx(check["predicted"] / 2.0 - 1.0)
    assert check["equal_answers"] == 0
    assert abs(check["error"]) > 0.1


def test_between_the_points_of_a_grid_costs_are_straight():
    """Guards the table: exact on the grid, plain without a draft, and nothing beyond the last γ."""
    stages = np.array([[[1.0, 2.0], [4.0, 8.0]], [[3.0, 1.0], [12.0, 4.0]]])  # exits 1 and 3; γ 1 and 4
    rounds = RoundCosts(4, (1, 3), (1, 4), stages, 0.1).rounds
    assert rounds.shape == (3, 5)
    assert rounds[:, 0].tolist() == [1.0, 1.0, 1.0]
    assert rounds[0].tolist() == pytest.approx([1.0, 3.0, 6.0, 9.0, 12.0])
    assert rounds[1, 1] == pytest.approx(3.5)
    assert rounds[2, 4] == pytest.approx(16.0)


def test_grids_hold_their_ends():
    """Guards against extrapolation: the first and the last exit, one token and the longest draft."""
    assert grid_exits(2) == (1,)
    assert grid_exits(30) == (1, 15, 29)
    assert grid_gammas(1) == (1,)
    assert grid_gammas(6) == (1, 2, 4, 6)
    assert grid_gammas(8) == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"points": "5:1"}, "exit layer is 5"),
        ({"contexts": "9999"}, "at most"),
        ({"points": "3:6"}, "must be 1 to 5"),
        ({"points": "3"}, "K:γ"),
        ({"budget": "2 minutes"}, "such as 90s"),
        ({"budget": "0s"}, "such as 90s"),
        ({"gamma": 0}, "must be 1 to 64"),
        ({"contexts": "1,x"}, "numbers of tokens"),
        ({"max_new_tokens": 1}, "at least 2"),
        ({"pairs": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(layered, profiled, clock, options, words):
    """Guards mistakes: one error, and no time spent."""
    before = clock()
    with pytest.raises(OptionError, match=words):
        profiled(layered(), **options)
    assert clock() == before


def test_budgets_are_times():
    """Guards the spelling."""
    found = [ProfileOptions(budget=text).budget_seconds for text in ("90s", "2m", "1.5h")]
    assert found == [90.0, 120.0, 5400.0]
