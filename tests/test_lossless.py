"""Losslessness: speculative output is the oracle's, everywhere a draft can end, be rejected or be cut."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import run, tiny_runtime
from lossless_table import DRAFTERS, NEW, PROMPT, check_cache, drafter
from wild_drafters import script

from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.drafters.early_exit import EarlyExit
from selfspec.measure.laws import p_value, transitions
from selfspec.measure.toy import MarkovRuntime
from selfspec.reference import oracle
from selfspec.rounds import Commit, Round, Stats
from selfspec.runtime.torch import TorchRuntime
from selfspec.sampling import Chance
from selfspec.types import Draft, Sampling


@pytest.fixture(scope="module")
def runtime() -> TorchRuntime:
    return tiny_runtime()


@pytest.fixture(scope="module")
def expected(runtime) -> list[int]:
    return oracle(runtime, PROMPT, NEW, Chance(0))


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_end_cuts_where_plain_decoding_stops(runtime, expected, name):
    """Guards ends inside an accepted run at every place: end-of-text, and the length (HF #47912, #46993)."""
    for stop in range(1, NEW + 1):
        options = drafter(name, runtime, [PROMPT + expected], 1 + stop % 8)
        (text,) = run(runtime, [PROMPT], *options, new_tokens=stop)
        assert text.tokens[len(PROMPT) :] == expected[:stop]
        assert text.finish_reason == "length"
        eos = expected[stop - 1]
        want = expected[: expected.index(eos) + 1]
        options = drafter(name, runtime, [PROMPT + expected], 1 + stop % 7)
        (text,) = run(runtime, [PROMPT], *options, new_tokens=NEW, ends=lambda t, e=eos: t == e)
        assert text.tokens[len(PROMPT) :] == want
        assert text.finish_reason == "stop"


@pytest.mark.parametrize("exit_layer", range(1, 5))
@pytest.mark.parametrize("gamma", [1, 4])
def test_row_layers_are_counted_and_are_what_they_must_be(runtime, exit_layer, gamma):
    """Guards "no layer runs twice": γ drafts at exit k cost (γ + 1) * L row-layers, γ * k of them in the draft."""
    rounds = []
    options = {"exit_layer": exit_layer, "gamma": gamma}
    counted = Counting(runtime)
    run(
        counted,
        [PROMPT],
        "early_exit",
        options,
        each_round=lambda c, t, r: rounds.append((r, counted.take())),
    )
    assert rounds[0][1] == len(PROMPT) * 5
    for round_, truth in rounds[1:]:
        drafted = round_.commits[0].drafted
        assert drafted <= gamma
        assert round_.draft_row_layers == drafted * exit_layer
        assert round_.draft_row_layers + round_.verify_row_layers == (drafted + 1) * 5 == truth
    assert any(r.commits[0].drafted == gamma for r, _ in rounds)


@pytest.mark.parametrize("exit_layer", [1, 4])
def test_a_comb_pays_for_its_rows_and_no_layer_twice(runtime, exit_layer):
    """Guards the counts of trees: the draft runs the chain only, leaves start at layer 0, each row pays L once."""
    seen, stats = set(), Stats()

    def check(_context, _texts, round_):
        stats.add(round_)
        truth, (commit,) = counted.take(), round_.commits
        if round_.index > 0:
            seen.add(commit.widths)
            assert round_.draft_row_layers == commit.depth * exit_layer
            assert round_.draft_row_layers + round_.verify_row_layers == (commit.drafted + 1) * 5 == truth

    counted = Counting(runtime)
    options = {"exit_layer": exit_layer, "gamma": 3, "siblings": 2}
    run(counted, [PROMPT], "early_exit", options, new_tokens=40, each_round=check)
    assert (3, 3, 3) in seen
    assert any(sum(widths) < 3 * len(widths) for widths in seen)  # near the end the comb thins out
    assert stats.drafted == sum(stats.drafted_per_position) > 3 * stats.accepted
    assert stats.accepted == sum(stats.accepted_per_position)


def test_a_stopped_draft_costs_no_layer_twice(runtime):
    """Guards the confidence stop: the state of the row where it stopped is used, also with no draft."""
    seen = set()

    def check(_context, _texts, round_):
        if round_.index == 0:
            return
        drafted = round_.commits[0].drafted
        rows = drafted + (drafted < 4)  # the last rounds have no room for a full draft
        seen.add(drafted)
        assert round_.draft_row_layers in {rows * 3, drafted * 3}
        assert round_.draft_row_layers + round_.verify_row_layers == (drafted + 1) * 5

    options = {"exit_layer": 3, "gamma": 4, "confidence": 0.4}
    run(runtime, [PROMPT], "early_exit", options, new_tokens=60, each_round=check)
    assert {0, 1} < seen


class Counting(TorchRuntime):
    """Counts layers times rows where they run, to check the context's own count."""

    def __init__(self, runtime):
        self.__dict__ |= runtime.__dict__
        self.count = 0.0

    def run(self, hidden, plan, rows, cache, taps=()):
        self.count += len(plan.steps) / 2 * len(rows)
        return super().run(hidden, plan, rows, cache, taps)

    def take(self):
        count, self.count = self.count, 0.0
        return count


LAWS = [Sampling(1.0), Sampling(1.3, top_k=3, top_p=0.9)]


@pytest.mark.parametrize(
    ("sampling", "siblings", "texts"), [(LAWS[1], 0, 400), (LAWS[0], 2, 120)], ids=["cut", "comb"]
)
def test_sampled_output_has_the_targets_law(sampling, siblings, texts):
    """Chi-square end to end, on 200,000 transitions of a toy chain; false alarms: 1 in a million per run.

    With leaves there are fewer: their law is enumerated, too (test_loop_law).
    """
    runtime = MarkovRuntime()
    exits = drafters.create("early_exit", runtime.config, {"exit_layer": 2, "gamma": 2, "siblings": siblings})
    counts = transitions(runtime, sampling, exits, texts)
    assert counts.sum() >= 500 * texts
    assert p_value(counts, runtime.transition(sampling)) > 1e-6


def test_chi_square_catches_a_biased_verifier(monkeypatch):
    """The negative control: a verifier that takes the bonus from p instead of the residual must be seen."""
    from test_verify import bonus_without_residual

    monkeypatch.setattr("selfspec.decode.verify_block", bonus_without_residual)
    runtime, sampling = MarkovRuntime(), Sampling(1.0)
    exits = drafters.create("early_exit", runtime.config, {"exit_layer": 2, "gamma": 3})
    assert p_value(transitions(runtime, sampling, exits, 100), runtime.transition(sampling)) < 1e-6


def test_buffers_are_within_their_formulas(runtime, monkeypatch):
    """Guards the memory claim: what a draft keeps is γ*d states and γ*V probabilities, and KV is plain's."""
    sizes = []
    propose = EarlyExit.propose

    def measured(self, context, texts, gammas):
        drafts = propose(self, context, texts, gammas)
        for draft, gamma in zip(drafts, gammas, strict=True):
            laws = sum(law.probs.nbytes for law in draft.laws or ())
            states = 0 if draft.hidden is None else draft.hidden.nbytes
            sizes.append((states, gamma * 32 * 8, laws, gamma * 61 * 8))
        return drafts

    monkeypatch.setattr(EarlyExit, "propose", measured)
    seen = []
    for kind, options in (("plain", {}), ("early_exit", {"exit_layer": 3, "gamma": 4})):
        run(
            runtime,
            [PROMPT],
            kind,
            options,
            sampling=Sampling(1.0),
            each_round=lambda c, t, r: seen.append(c.cache.nbytes),
        )
    assert len(set(seen)) == 1
    assert all(states == most and laws == bound for states, most, laws, bound in sizes)


def test_stats_are_sums_over_the_rounds():
    """Guards every reported number, with two texts, rejections, and an end inside a draft."""
    stats = Stats()
    stats.add(Round(0, (Commit(0, (1,), (), 0, None), Commit(1, (2,), (), 0, None)), 0.0, 0.0, 2.0, 0.0, 30.0))
    stats.add(
        Round(
            1, (Commit(0, (3, 4, 5), (1, 1, 1), 2, None), Commit(1, (6,), (2,), 0, None)), 2.0, 2.5, 3.0, 4.0, 16.0
        )
    )
    stats.add(Round(2, (Commit(0, (7, 8), (1, 1, 1, 1), 2, "stop"),), 3.0, 3.25, 4.0, 6.0, 10.0))
    assert (stats.texts, stats.tokens, stats.rounds) == (2, 8, 3)
    assert (stats.drafted, stats.accepted) == (9, 4)
    assert stats.drafted_per_position == [4, 2, 2, 1]
    assert stats.accepted_per_position == [2, 2]
    assert (stats.prefill_row_layers, stats.draft_row_layers, stats.verify_row_layers) == (30.0, 10.0, 26.0)
    assert (stats.ttft_seconds, stats.seconds, stats.draft_seconds) == (2.0, 4.0, 0.75)
    assert stats.acceptance_rate == 4 / 9
    assert stats.mean_accepted_length == 6 / 3
    assert stats.tokens_per_second == 8 / 4.0
    assert stats.decode_tokens_per_second == 6 / 2.0
    empty = Stats()
    assert (empty.acceptance_rate, empty.mean_accepted_length, empty.decode_tokens_per_second) == (None,) * 3


def test_accepted_never_counts_more_than_was_added(runtime, expected):
    """Guards α at an end inside an accepted run: drafts past the end are not accepted ones."""
    right = script("right", [PROMPT + expected])
    for stop in range(1, NEW):
        commits = []
        run(
            runtime,
            [PROMPT],
            "scripted",
            {"script": right, "gamma": 5},
            new_tokens=NEW,
            ends=lambda t, e=expected[stop]: t == e,
            each_round=lambda c, t, r, into=commits: into.extend(r.commits),
        )
        assert all(commit.accepted <= len(commit.tokens) for commit in commits)
        assert sum(len(commit.tokens) for commit in commits) == expected.index(expected[stop]) + 1


def test_prefill_in_chunks_loses_nothing(runtime, expected, monkeypatch):
    """Guards the seams between chunks of a long prompt."""
    monkeypatch.setattr("selfspec.context.PREFILL_ROWS", 3)
    (text,) = run(runtime, [PROMPT], new_tokens=NEW, each_round=check_cache)
    assert text.tokens[len(PROMPT) :] == expected


def test_rows_of_one_pass_may_join_at_different_layers(runtime):
    """Guards mixed drafters in a batch: states kept at layers 3 and 1, and rows that start at 0."""
    texts = run(runtime, [PROMPT, [1, 2], [9, 9, 3]], "plain", new_tokens=4)
    prompts = [text.tokens[:-1] for text in texts]  # any committed texts
    context = Context(runtime, runtime.new_cache(3, 40))
    made = []
    for slot, tokens in enumerate(prompts):
        text = Text(slot, slot, list(tokens), 40, Sampling(), Chance(0), lambda _: False)
        context.prefill(text)
        text.tokens.append(5)
        made.append(text)
    drafts = []
    for text, layer in zip(made, (3, 1, 0), strict=True):
        states = [context.step(context.full.span(0, layer), [text], [[5]], [0])[0]] if layer else []
        drafts.append(Draft((7, 8), None, states[0] if states else None, layer))
    scored = context.score(made, drafts)
    for text, draft, rows in zip(made, drafts, scored, strict=True):
        alone = Context(runtime, runtime.new_cache(3, 40))
        alone.prefill(Text(0, text.slot, text.tokens[:-1], 40, Sampling(), Chance(0), lambda _: False))
        (want,) = alone.score([text], [Draft(draft.tokens)])
        assert np.abs(rows - want).max() < 1e-12
