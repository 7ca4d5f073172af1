"""The same model in fewer bits as the drafter, on the target's own cache."""

from __future__ import annotations

import pytest
from doubles import Host, run, tiny_core, tiny_runtime
from lossless_table import PROMPTS

import selfspec
from selfspec import drafters
from selfspec.errors import OptionError
from selfspec.measure.laws import loop_law, total_variation
from selfspec.measure.table import Table
from selfspec.types import LayerPlan, Rows, Sampling


@pytest.fixture(scope="module")
def target():
    return tiny_core("bf16")


def made(target, light=None, **options):
    host = Host(target, {8: light or tiny_core("int8"), 4: light or tiny_core("int4")})
    return drafters.create("quantized", target.config, options, host)


def test_the_cache_that_a_draft_leaves_is_plain_decodings_to_the_last_bit(target):
    """Guards the shared cache: what the draft wrote of its rows is overwritten, stopped drafts and leaves included.

    The cache shows in the logits of the next row: they are compared with those after a fresh prefill.
    """
    seen = set()

    def check(context, texts, round_):
        seen.update((commit.depth, commit.accepted) for commit in round_.commits)
        for text in texts:
            if text.is_ended:
                continue
            logits = []
            cells = text.cached
            fresh = target.new_cache(1, cells + 1)
            rows = Rows.of([0] * cells, range(cells))
            target.run(target.embed(text.tokens[:cells]), context.full, rows, fresh)
            for cache, slot in ((context.cache, text.slot), (fresh, 0)):
                hidden, _ = target.run(
                    target.embed([text.pending]), LayerPlan.full(5), Rows.of([slot], [cells]), cache
                )
                logits.append(target.logits(hidden).tobytes())
            assert logits[0] == logits[1]

    for options in ({"gamma": 3}, {"gamma": 3, "siblings": 2}, {"gamma": 5, "confidence": 0.3}):
        run(target, PROMPTS, made(target, draft_bits=4, **options), new_tokens=16, each_round=check)
    assert {(3, 3), (3, 0), (0, 0)} <= seen
    assert any(depth == 3 and 0 < accepted < 3 for depth, accepted in seen)


def test_no_second_prefill_and_no_second_cache(target):
    """Guards what sharing is for: the lighter weights run draft rows only; γ steps cost γ times all layers."""
    light, rounds, rows = tiny_core("int4"), [], []
    once = light.run

    def counting(hidden, plan, which, cache, taps=()):
        rows.append(len(which))
        return once(hidden, plan, which, cache, taps)

    light.run = counting
    drafter = made(target, light, gamma=3)
    run(target, PROMPTS, drafter, each_round=lambda c, t, r: rounds.append(r))
    assert sum(rows) * 5 == sum(round_.draft_row_layers for round_ in rounds)
    assert max(rows) == len(PROMPTS)
    assert drafter.extra_bytes == (light.weight_bytes, 0)
    assert light.weight_bytes < target.weight_bytes / 2


class Rounded(Table):
    """A table of a model that could run in 4 bits."""

    fewer_bits = (4,)


@pytest.mark.parametrize("sampling", [Sampling(1.0, top_k=2), Sampling(0.7, top_k=2)], ids=["1.0", "0.7"])
def test_texts_have_the_plain_law(target, sampling):
    """Guards sampled drafts exactly: all outcomes of 4 tokens, the target's logits from its table."""
    prompt, new = PROMPTS[0], 4
    table = Rounded(target, prompt, new)
    light = Table(tiny_core("int4"), prompt, new)
    plain = loop_law(table, (prompt, new), sampling, drafters.create("plain", target.config, {}))
    law = loop_law(table, (prompt, new), sampling, made(table, light, gamma=2))
    assert len(plain) > 4
    assert total_variation(plain, law) < 1e-12


@pytest.mark.parametrize(("kind", "bits"), [("fp32", 8), ("fp16", 8), ("bf16", 8), ("int8", 4)])
def test_the_next_fewer_bits_are_the_default(kind, bits):
    """Guards the default, and that a cache of float32 serves weights that would have one of float16."""
    target = tiny_core(kind)
    host = Host(target, {8: tiny_core("int8"), 4: tiny_core("int4")})
    drafter = drafters.create("quantized", target.config, {}, host)
    assert host.opened == [bits]
    assert drafter.runs == f"int{bits}"
    rounds = []
    run(target, PROMPTS, drafter, each_round=lambda c, t, r: rounds.extend(r.commits))
    assert sum(c.accepted for c in rounds) / sum(c.drafted for c in rounds) > 0.3


def test_an_engine_packs_its_own_checkpoint(tiny):
    """Guards the whole way: packed once, shared by requests, the text of plain decoding, the report."""
    engine = selfspec.load(tiny, bits=16)
    options = {"max_new_tokens": 24, "ignore_eos": True}
    plain = engine.generate("hello there", draft="plain", **options)
    for own, plan in (({}, "int8"), ({"draft_bits": 4}, "int4"), ({"draft_bits": 4, "siblings": 2}, "int4")):
        done = engine.generate("hello there", draft="quantized", **own, **options)
        assert (done.token_ids, done.plan, done.draft_kv_bytes) == (plain.token_ids, plan, 0)
        assert done.stats.accepted > 0
        assert done.kv_bytes == plain.kv_bytes
    assert done.draft_weight_bytes == engine.open_model(runtime="cpu", bits=4).runtime.weight_bytes
    results = dict(
        engine.batch(["hello there"] * 3, slots=2, draft="quantized", temperature=0.8, seed=1, **options)
    )
    alone = engine.generate("hello there", draft="quantized", temperature=0.8, seed=1, **options)
    assert [results[i].token_ids for i in range(3)] == [alone.token_ids] * 3
    assert len([key for key in engine._kept if key[0] == "model"]) == 2


def test_what_is_refused(tiny):
    """Guards the errors: runtimes without fewer bits, bits that are not fewer, and engines without files."""
    for placed, options, said in (
        ({"dtype": "float32"}, {}, "this model runs in float32 on torch: use runtime cpu with more bits"),
        ({"bits": 4}, {}, "this model runs in int4 on cpu"),
        ({"bits": 8}, {"draft_bits": 8}, "draft_bits is 8, but this model runs in int8; it must be fewer: 4"),
        ({"bits": 16}, {"draft_bits": 16}, "draft_bits is 16; it must be 4 or 8"),
    ):
        with pytest.raises(OptionError, match=said):
            selfspec.load(tiny, draft="quantized", **placed, **options)
    with pytest.raises(OptionError, match="core was not loaded from files"):
        selfspec.Engine(tiny_core("bf16"), None, "core", draft="quantized")
    with pytest.raises(OptionError, match="on torch"):
        selfspec.Engine(tiny_runtime(), None, "torch", draft="quantized")
