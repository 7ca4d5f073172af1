"""The moe drafter: the same mixture with fewer experts."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from doubles import TINY, run
from family_models import model_of
from trained_mixture import SIZES, trained_mixture

from selfspec import control
from selfspec.drafters.moe import Moe, MoeOptions
from selfspec.drafters.utility import UtilityGate
from selfspec.errors import OptionError
from selfspec.runtime.torch import TorchRuntime
from selfspec.traffic import Traffic, distinct_experts
from selfspec.types import LayerPlan, Rows, Sampling

PROMPTS = [[7, 3, 50, 21, 9], [80, 4]]
MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "granitemoe"]


@cache
def runtime_of(case):
    return TorchRuntime.of(model_of(case))


@pytest.mark.parametrize("case", MIXTURES)
@pytest.mark.parametrize("siblings", [0, 1])
def test_drafts_with_fewer_experts_change_nothing(case, siblings):
    """Guards the drafter on every mixture: the text of plain decoding, greedy and coupled, from a ragged batch."""
    for sampling in (Sampling(), Sampling(0.9, coupled=True)):
        accepted = []
        want = run(runtime_of(case), PROMPTS, new_tokens=14, sampling=sampling)
        got = run(
            runtime_of(case),
            PROMPTS,
            "moe",
            {"experts": 1, "gamma": 3, "siblings": siblings, "utility": False},
            new_tokens=14,
            sampling=sampling,
            each_round=lambda c, t, r, seen=accepted: seen.extend(commit.accepted for commit in r.commits),
        )
        assert [text.tokens for text in got] == [text.tokens for text in want]
        assert sum(accepted) > 0


def test_a_draft_reads_fewer_experts():
    """Guards the point of it: each draft row has as many experts as was asked for, each row of the target all."""
    runtime, asked = TorchRuntime.of(model_of("mixtral")), []
    mixture = type(runtime._blocks[0]._mixture)
    original = mixture.__call__

    def seen(self, x, per_token=None):
        asked.append((x.shape[0], per_token))
        return original(self, x, per_token)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixture, "__call__", seen)
        run(runtime, [PROMPTS[0]], "moe", {"gamma": 2, "utility": False}, new_tokens=4)
    assert {per_token for rows, per_token in asked if rows == 1} >= {1}
    assert {per_token for rows, per_token in asked if rows == 3} == {None}


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (TINY, {}, "this model is no mixture of experts"),
        ("mixtral", {"experts": 2}, "experts is 2; each token of this model has 2, so a draft must have 1 to 1"),
        ("mixtral", {"experts": 0}, "experts is 0"),
    ],
)
def test_what_cannot_draft_is_one_line(config, options, words):
    """Guards the user's mistake."""
    config = runtime_of(config).config if isinstance(config, str) else config
    with pytest.raises(OptionError, match=words):
        Moe(MoeOptions(**options), config)


# -- a mixture that has learned something -----------------------------------------------------------------


@pytest.fixture(scope="session")
def trained():
    """A runtime, and four texts of the language that it was trained on."""
    model, language = trained_mixture()
    random = np.random.default_rng(5)
    return TorchRuntime.of(model), [language.text(random, 12) for _ in range(4)], language


def drafted_and_accepted(runtime, prompts, **options):
    judged = [0, 0]

    def count(_context, _texts, round_):
        for commit in round_.commits:
            judged[0] += commit.drafted
            judged[1] += commit.accepted

    texts = run(runtime, prompts, "moe", options, new_tokens=60, each_round=count)
    return texts, *judged


def test_half_of_the_experts_say_what_all_of_them_say(trained):
    """Guards the method where it is meant to work: a trained mixture, one expert a token instead of two."""
    runtime, prompts, language = trained
    texts, drafted, accepted = drafted_and_accepted(runtime, prompts, experts=1, gamma=4, utility=False)
    assert accepted / drafted >= 0.8
    assert [t.tokens for t in texts] == [t.tokens for t in run(runtime, prompts, new_tokens=60)]
    known = {tuple(phrase[i : i + 3]) for phrase in language.phrases for i in range(len(phrase) - 2)}
    said = [tuple(t.tokens[i : i + 3]) for t in texts for i in range(12, 70)]
    assert np.mean([words in known for words in said]) > 0.3  # it has learned; by chance it would be nearly none
    shuffled = TorchRuntime(runtime.config, _with_other_routers(runtime.weights))
    _, drafted, accepted = drafted_and_accepted(shuffled, prompts, experts=1, gamma=4, utility=False)
    assert accepted / drafted < 0.8  # the negative control: routers that know nothing


def _with_other_routers(weights):
    return {
        n: w.flip(0) if w.shape[0] == SIZES["num_local_experts"] and w.ndim == 2 else w for n, w in weights.items()
    }


def test_what_a_trained_router_reads_is_near_the_formula(trained, monkeypatch):
    """Guards the cost model against routing that was learned: distinct experts that T rows of a text have."""
    runtime, _, language = trained
    tokens, asked = language.text(np.random.default_rng(9), 96), []
    mixture = type(runtime._blocks[0]._mixture)
    expert = mixture._expert
    monkeypatch.setattr(mixture, "_expert", lambda self, e, x: asked.append(e) or expert(self, e, x))
    for count in (1, 2, 4, 8):
        cache = runtime.new_cache(1, 96)
        asked.clear()
        for start in range(0, 96, count):
            rows = Rows.of([0] * count, range(start, start + count))
            runtime.run(runtime.embed(tokens[start : start + count]), LayerPlan.full(2), rows, cache)
        read = len(asked) / (2 * 96 / count)
        assert read == pytest.approx(distinct_experts(8, 2, count), rel=0.15)


# -- what reading costs, and the gate ---------------------------------------------------------------------


def test_what_passes_read():
    """Guards the model at its ends: one row, many rows, a dense model, and where arithmetic takes over."""
    mixture = Traffic(0.8, 64, 8)
    assert mixture.cost(1) == pytest.approx(1.0, rel=1e-12)
    assert mixture.cost(10**6) == pytest.approx(0.2 + 0.8 * 8, rel=1e-9)
    assert [distinct_experts(64, 8, t) / 8 for t in (2, 4)] == pytest.approx([1.88, 3.31], abs=0.01)  # published
    assert Traffic().row_costs(4, 3) == [1.0, 1.0, 1.0, 1.0]
    assert Traffic(ridge=6).row_costs(2, 3) == pytest.approx([1.0, 1.0, 1.0, 8 / 6])
    assert mixture.draft_cost(4) == pytest.approx(0.6)
    assert mixture.draft_cost(4, texts=10**6) == pytest.approx(1.0, rel=1e-9)  # all experts are read by then
    of_model = Traffic.of(runtime_of("mixtral").config)
    assert (of_model.experts, of_model.per_token) == (5, 2)
    assert 0.3 < of_model.share < 0.9
    assert Traffic.of(TINY) == Traffic()


def test_the_gate_opens_where_it_pays_and_shuts_where_not():
    """Guards the choice of γ against the cost model's own best, at the α that the gate believes in."""
    for alpha, c, v in (
        (0.95, 0.5, [1.0] * 9),
        (0.7, 0.2, [1.0 + 0.1 * t for t in range(9)]),
        (0.9, 0.6, [1.0, *[1.7] * 8]),
    ):
        gate, random = UtilityGate(), np.random.default_rng(1)
        for _ in range(200):
            gate.learn(4, int(np.argmin([*(random.random(4) < alpha), False])))
        assert gate.alpha == pytest.approx(alpha, abs=0.2)
        assert gate.choose(8, c, v) == control.best_gamma(gate.alpha, c, v, max_gamma=8)


def test_a_shut_gate_is_tried_ever_more_seldom_and_opens_again():
    """Guards against both: drafts that never stop costing, and a gate that never learns of better times."""
    gate, v, tried = UtilityGate(), [1.0, 1.3], []
    for round_ in range(400):
        if gate.choose(1, 0.4, v):
            tried.append(round_)
            gate.learn(1, 0)
    gaps = np.diff(tried[-5:])
    assert len(tried) < 20
    assert gaps.max() == 64
    for _ in range(60 * 64):
        if gate.choose(1, 0.4, v):
            gate.learn(1, 1)
    assert gate.choose(1, 0.4, v) == 1


def test_the_drafter_asks_the_gate(trained, monkeypatch):
    """Guards the wiring: where a row reads more than its token is worth drafting ends, where it reads none, not."""
    runtime, prompts, _ = trained
    _, drafted, _ = drafted_and_accepted(runtime, prompts, experts=1, gamma=2)
    assert drafted < 4 * 60 * 0.15  # α is 0.97, and still a second expert costs more than its token brings
    monkeypatch.setattr("selfspec.drafters.moe.Traffic.of", lambda _: Traffic(0.98, 2, 2))
    (text,), drafted, accepted = drafted_and_accepted(runtime, prompts[:1], experts=1, gamma=2)
    assert drafted > 30
    assert accepted > 0.8 * drafted
    assert text.tokens == run(runtime, prompts[:1], new_tokens=60)[0].tokens


def test_a_sampled_text_does_not_depend_on_its_company(trained, monkeypatch):
    """Guards seeds in a batch: the gate looks at the other texts of a pass only where no text can change by it."""
    runtime, prompts, _ = trained
    monkeypatch.setattr("selfspec.drafters.moe.Traffic.of", lambda _: Traffic(0.98, 2, 2))
    options, sampling = {"experts": 1, "gamma": 3}, Sampling(2.0)
    together = run(runtime, prompts, "moe", options, new_tokens=20, sampling=sampling)
    alone = run(runtime, prompts[:1], "moe", options, new_tokens=20, sampling=sampling)
    assert alone[0].tokens == together[0].tokens
