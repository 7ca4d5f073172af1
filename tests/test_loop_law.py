"""The law of whole texts through the real loop, by exact enumeration of everything that chance can decide."""

from __future__ import annotations

import numpy as np
import pytest
from test_verify import bonus_without_residual

from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.drafters import steps
from selfspec.measure.laws import loop_law, plain_law, total_variation
from selfspec.measure.toy import MarkovRuntime
from selfspec.sampling import Chance, distribution
from selfspec.types import LayerPlan, Prefix, Sampling, Verdict
from selfspec.verify import verify_block

SIZE = 3


def avoid_recent(prefix, logits):
    """A processor that depends on the prefix."""
    out = logits.copy()
    for token in prefix[-2:]:
        out[token] -= 0.7
    return out


CHAIN = {"processors": (avoid_recent,)}  # a user's callable: judged token by token
BLOCK = {"repetition_penalty": 1.7, "frequency_penalty": 0.4}  # prefix-dependent, and pure: judged as a block


def distance(seed, shaping=CHAIN):
    """Total variation between the two laws, for a random configuration."""
    random = np.random.default_rng(seed)
    runtime = MarkovRuntime(SIZE, 3, seed=seed)
    cuts = {"top_k": int(random.choice([0, 2])), "top_p": float(random.choice([1.0, 0.8]))}
    sampling = Sampling(float(random.choice([0.5, 1.0, 2.0])), **cuts, **shaping)
    kind = {"early_exit": {"exit_layer": int(random.choice([1, 2]))}, "layer_skip": {"skip": "mlp 1"}}
    draft = "layer_skip" if seed % 4 == 3 else "early_exit"
    options = {
        **kind[draft],
        "gamma": int(random.choice([1, 2, 3])),
        "confidence": float(random.choice([0.0, 0.4, 0.6])),
        "adaptive": bool(random.random() < 0.5),
    }
    start, end = ([0], 3), int(random.choice([-1, 0, 1]))
    hidden, _ = runtime.run(runtime.embed(range(SIZE)), LayerPlan.full(3), None, None)
    want = plain_law(lambda tokens: runtime.logits(hidden)[tokens[-1]].copy(), *start, sampling, lambda t: t == end)
    drafter = drafters.create(draft, runtime.config, options)
    return total_variation(want, loop_law(runtime, start, sampling, drafter, lambda t: t == end))


@pytest.mark.parametrize("shaping", [CHAIN, BLOCK], ids=["chain", "block"])
@pytest.mark.parametrize("seed", range(16))
def test_texts_have_the_plain_law(seed, shaping):
    """Guards the loop as a whole: stops, ends, room, cuts and processors, with sampled drafts."""
    assert distance(seed, shaping) < 1e-12


def worst(shaping=CHAIN, seeds=range(16)):
    return max(distance(seed, shaping) for seed in seeds)


@pytest.mark.parametrize(("shaping", "rule"), [(CHAIN, "verify_chain"), (BLOCK, "verify_block")])
def test_it_catches_a_bonus_without_the_residual(monkeypatch, shaping, rule):
    """The negative control of each rule, and that the loop uses it: blocks only where no callable looks on."""
    monkeypatch.setattr(f"selfspec.decode.{rule}", bonus_without_residual)
    assert worst(shaping, range(4)) > 1e-3


def test_it_catches_ends_that_are_looked_for_in_the_whole_draft(monkeypatch):
    """The negative control of ends in a block: a token that is rejected must not end the text."""

    def early(draft, target, dice, ends):
        for i, token in enumerate(draft.tokens):
            if ends(token):
                return Verdict(i + 1, None)
        return verify_block(draft, target, dice, ends)

    monkeypatch.setattr("selfspec.decode.verify_block", early)
    assert worst(BLOCK) > 1e-3


def test_blocks_ask_for_the_end_once_per_new_token_and_accept_more():
    """Guards `ends`, which keeps state: once for each token of the text, in order; and the point of it all."""
    accepted = []
    for sampling in (Sampling(1.0), Sampling(1.0, processors=(lambda _, logits: logits,))):
        asked = [[] for _ in range(20)]
        runtime = MarkovRuntime(4, 3)
        texts = [Text(i, i, [0], 120, sampling, Chance(i), asked[i].append) for i in range(20)]
        drafter = drafters.create("early_exit", runtime.config, {"exit_layer": 2, "gamma": 4})
        rounds = list(decode(Context(runtime, runtime.new_cache(20, 120)), texts, drafter))
        assert asked == [text.tokens[1:] for text in texts]
        accepted.append(
            sum(commit.accepted for r in rounds for commit in r.commits) / sum(len(r.commits) for r in rounds)
        )
    assert accepted[0] > 1.01 * accepted[1]


def test_it_catches_a_stop_that_looks_at_the_drawn_token(monkeypatch):
    """The negative control of the confidence stop: dropping a token after drawing it biases the text."""

    def grow(self, chain, logits, *_):
        law = distribution(logits, chain.text.sampling.for_drafts, chain.text.prefix(chain.comb.tokens))
        token = chain.text.chance.pick(law)
        stop = self._stops[chain.text]
        if stop.is_on and stop.before(law.probability(token)):
            return False
        chain.comb.add(token, [], [law])
        return True

    monkeypatch.setattr(steps.StepDrafter, "_grow", grow)
    assert worst() > 1e-3


def test_it_catches_processors_that_see_the_wrong_prefix(monkeypatch):
    """The negative control of LayerSkip's bug: processors applied once per block, with one prefix for all rows."""
    monkeypatch.setattr(Text, "prefix", lambda self, draft: Prefix(list(self.tokens), 1))
    assert worst() > 1e-3


def test_processors_see_exactly_the_calls_of_plain_decoding():
    """Guards stateful processors: neither the draft nor a rejected row may call them."""

    def calls(drafter, options):
        seen = []

        def record(prefix, logits):
            seen.append(tuple(prefix))
            return logits

        runtime = MarkovRuntime(4, 3)
        text = Text(0, 0, [0], 30, Sampling(processors=(record,)), None, lambda _: False)
        text.chance = type("Certain", (), {"pick": lambda self, law: law.token})()
        made = drafters.create(drafter, runtime.config, options)
        for _ in decode(Context(runtime, runtime.new_cache(1, 30)), [text], made):
            pass
        return seen

    plain = calls("plain", {})
    assert len(plain) == 29
    for drafter, options in (("early_exit", {"exit_layer": 2, "gamma": 3}), ("ngram", {"adaptive": False})):
        assert calls(drafter, options) == plain
