"""Recurrent layers: every place a draft may be left at, what is kept, and what is refused.

That every drafter gives plain decoding's text is in `lossless_table`, parity in test_families_parity.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from doubles import STATES, run, tiny_hybrid
from family_models import HYBRIDS, model_of, wide
from wild_drafters import Bush, script

import selfspec
from selfspec import drafters
from selfspec.context import Context
from selfspec.engine import Engine
from selfspec.errors import OptionError
from selfspec.measure.certify import default_candidates
from selfspec.model.config import Recurrence
from selfspec.runtime.states import BLOCK, kept_bytes, plain_bytes
from selfspec.runtime.torch_cache import TorchCache
from selfspec.runtime.torch_recurrent import Asked, scan
from selfspec.runtime.torch_states import Runs, States, Wave
from selfspec.stream import Memory
from selfspec.types import MAX_GAMMA, LayerPlan, Rows

TOKENS = np.random.default_rng(2).integers(3, 61, 64).tolist()
FULL = LayerPlan.full(5)
EVERY = pytest.mark.parametrize("kind", STATES)


def rows_of(runtime, tokens, start, cache, plan=FULL):
    """The states after ``plan`` of rows from ``start`` on."""
    rows = Rows.of([0] * len(tokens), range(start, start + len(tokens)))
    return runtime.run(runtime.embed(tokens, rows.positions), plan, rows, cache)[0]


def logits(runtime, tokens, start, cache):
    return runtime.logits(rows_of(runtime, tokens, start, cache))


def one_by_one(runtime, tokens):
    cache = runtime.new_cache(1, len(tokens))
    return np.concatenate([logits(runtime, [token], i, cache) for i, token in enumerate(tokens)])


# -- going back -------------------------------------------------------------------------------------------


@EVERY
def test_a_draft_may_be_left_at_every_place(kind):
    """Guards the two blocks and the ring: the longest draft, from every place in a block, every number accepted.

    Before it is verified the draft has run through shallow layers, row by row, and through one that it leaves out
    in verification: a draft that is thrown away.
    """
    gamma = 3
    runtime = tiny_hybrid(kind, block=gamma)
    want = one_by_one(runtime, TOKENS[:20])
    for root in range(1, 2 * gamma + 1):
        for accepted in range(gamma + 1):
            cache = runtime.new_cache(1, 20)
            logits(runtime, TOKENS[:root], 0, cache)
            held = root + 1 + accepted
            draft = [*TOKENS[root:held], *(60 - token for token in TOKENS[held : root + gamma + 1])]
            for step in range(gamma):
                rows_of(runtime, draft[step : step + 1], root + step, cache, FULL.span(1, 4))
            got = logits(runtime, draft, root, cache)[: accepted + 1]
            then = logits(runtime, TOKENS[held : held + 3], held, cache)
            assert np.abs(np.concatenate((got, then)) - want[root : held + 3]).max() < 1e-11


def a_smaller_ring(monkeypatch):
    monkeypatch.setattr("selfspec.runtime.torch_states.ring", lambda r, block: r.taps - 2 + block)


def one_block_only(monkeypatch):
    init = Wave.__init__

    def folded(self, *given):
        init(self, *given)
        self.half = torch.zeros_like(self.half)
        self._single = self._single and (self._single[0], 0)

    monkeypatch.setattr(Wave, "__init__", folded)


@pytest.mark.parametrize(
    ("kind", "fault"), [("conv", a_smaller_ring), ("delta", a_smaller_ring), ("delta", one_block_only)]
)
def test_keeping_less_would_be_seen(kind, fault, monkeypatch):
    """The negative controls of the test above."""
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_draft_may_be_left_at_every_place(kind)


@EVERY
def test_the_longest_draft_there_is(kind):
    """Guards the sizes that users have: γ 64, right for a while and then wrong, over several blocks of 64."""
    runtime = tiny_hybrid(kind, block=BLOCK, context_length=400)
    prompts = [TOKENS[:61]]
    want = [text.tokens for text in run(runtime, prompts, new_tokens=140)]
    options = {"gamma": MAX_GAMMA, "script": script("mixed", want)}
    accepted = []
    got = run(
        runtime,
        prompts,
        "scripted",
        options,
        new_tokens=140,
        each_round=lambda *given: accepted.extend(c.accepted for c in given[2].commits),
    )
    assert [text.tokens for text in got] == want
    assert max(accepted) > 30
    assert BLOCK >= MAX_GAMMA


@EVERY
def test_a_prefill_may_be_cut_anywhere(kind):
    """Guards chunks that end inside a block, at its end and blocks later."""
    runtime = tiny_hybrid(kind, block=4)
    want = one_by_one(runtime, TOKENS[:20])
    for cuts in ([20], [4, 8, 8], [3, 2, 14, 1], [5, 7, 8]):
        cache, start, got = runtime.new_cache(1, 20), 0, []
        for count in cuts:
            got.append(logits(runtime, TOKENS[start : start + count], start, cache))
            start += count
        assert np.abs(np.concatenate(got) - want).max() < 1e-11


def row_by_row(asked, beta):
    """The recurrence as it is defined: what is left of the state, what the row adds, what its query finds."""
    state, out = torch.zeros(4, 3, 5, dtype=torch.float64), []
    for row in range(len(asked.values)):
        q, k = (part[row].repeat_interleave(2, dim=0)[..., None] for part in (asked.queries, asked.keys))
        state = state * asked.decays[row].exp()[:, None, None]
        added = asked.values[row][:, None]
        if beta is not None:
            added = beta[row][:, None, None] * (added - k.mT @ state)
        state = state + k @ added
        out.append((q.mT @ state)[:, 0])
    return torch.stack(out)


@pytest.mark.parametrize("is_delta", [True, False])
def test_the_sums_are_the_recurrence(is_delta):
    """Guards the form over blocks for delta rules, and for states whose rows add their values as they are.

    Decays from almost nothing to almost everything: a state that is gone must not come back by rounding.
    """
    random, recurrence = torch.Generator().manual_seed(0), Recurrence("delta", 4, 4, 5, key_heads=2, key_dim=3)
    sizes = ((23, 2, 3), (23, 2, 3), (23, 4, 5), (23, 4))
    parts = [torch.randn(size, generator=random, dtype=torch.float64) for size in sizes]
    parts[1] = parts[1] / parts[1].norm(dim=-1, keepdim=True)
    asked, beta = Asked(*parts[:3], -torch.exp(3 * parts[3])), torch.sigmoid(parts[3]) if is_delta else None
    states, got = States(recurrence, 1, 4, lambda size, dtype=torch.float64: torch.zeros(size, dtype=dtype)), []
    for start, stop in ((0, 1), (1, 6), (6, 8), (8, 21), (21, 23)):
        runs = Runs(Rows.of([0] * (stop - start), range(start, stop)), 4, torch.device("cpu"))
        some = Asked(*(part[start:stop] for part in asked))
        got.append(scan(some, None if beta is None else beta[start:stop], runs, states))
    assert (torch.cat(got) - row_by_row(asked, beta)).abs().max() < 1e-12


# -- what is kept -----------------------------------------------------------------------------------------


@EVERY
def test_a_plan_leaves_the_states_of_other_layers_alone(kind):
    """Guards drafts that skip layers: their states are still those of the last verification."""
    runtime = tiny_hybrid(kind)
    cache = runtime.new_cache(1, 30)
    logits(runtime, TOKENS[:9], 0, cache)
    before = {i: [part.clone() for part in states._parts] for i, states in cache.states.items()}
    rows_of(runtime, TOKENS[9:14], 9, cache, LayerPlan.skipping(5, attention=[1, 3]))
    same = {
        i: all(torch.equal(ours, theirs) for ours, theirs in zip(before[i], states._parts, strict=True))
        for i, states in cache.states.items()
    }
    assert same == {0: False, 1: True, 3: True, 4: False}


def forget_the_beginning(monkeypatch):
    """States of the text before stay when a slot has another one."""
    ring, init = Runs.ring, Wave.__init__

    def all_there(self, *sizes):
        before, is_there, *rest = ring(self, *sizes)
        return before, torch.ones_like(is_there), *rest

    def never_first(self, *given):
        init(self, *given)
        self.is_first = self.is_first[:0]

    monkeypatch.setattr(Runs, "ring", all_there)
    monkeypatch.setattr(Wave, "__init__", never_first)


@EVERY
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_slot_serves_one_text_after_the_other(kind, is_broken, monkeypatch):
    """Guards batches: a text begins with empty states, whatever its slot has held; and the negative control."""
    runtime = tiny_hybrid(kind, block=4)
    want = one_by_one(runtime, TOKENS[40:46])
    cache = runtime.new_cache(1, 30)
    logits(runtime, TOKENS[:30], 0, cache)
    if is_broken:
        forget_the_beginning(monkeypatch)
    got = logits(runtime, TOKENS[40:46], 0, cache)
    assert (np.abs(got - want).max() < 1e-11) == (not is_broken)


@EVERY
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_states_cost_what_is_said(kind, dtype):
    """Guards `info`: bytes do not grow with the text, and a decoder that never goes back needs a part of them."""
    runtime = tiny_hybrid(kind, block=BLOCK, dtype=dtype)
    said = kept_bytes(runtime.config, runtime.value_bytes)
    caches = runtime.new_cache(3, 10), runtime.new_cache(3, 400)
    assert {cache.state_bytes for cache in caches} == {3 * said}
    cells = 3 * runtime.config.kv_values_per_token * runtime.value_bytes
    assert [cache.nbytes - cache.state_bytes for cache in caches] == [10 * cells, 400 * cells]
    assert runtime.config.kv_values_per_token == 2 * 2 * 8  # of the one layer with attention
    assert caches[0].longer(20).states is caches[0].states
    assert 0 < plain_bytes(runtime.config, runtime.value_bytes) < said / 3


@EVERY
@pytest.mark.parametrize(("dtype", "noise"), [("float32", 1e-4), ("bfloat16", 0.2)])
def test_narrower_weights_are_the_same_model(kind, dtype, noise):
    """Guards the precisions that checkpoints have: states stay in float32, and rows in several passes agree."""
    want = one_by_one(tiny_hybrid(kind, block=4), TOKENS[:14])
    narrow = tiny_hybrid(kind, block=4, dtype=dtype)
    whole = logits(narrow, TOKENS[:14], 0, narrow.new_cache(1, 14))
    scale = np.abs(want).max()
    assert np.abs(whole - want).max() < noise * scale
    assert np.abs(one_by_one(narrow, TOKENS[:14]) - whole).max() < noise * scale


# -- conversations ----------------------------------------------------------------------------------------


def another_turn(engine, first, then, **options):
    """The prefill and the answer of a second turn, and how much of a cache that is kept was used."""
    memory = Memory()
    for prompt in (first, then):
        stream = engine.stream(prompt, max_new_tokens=6, ignore_eos=True, **options)
        stream.attach(memory, lambda _: None)
        answer = stream.completion
        first = [*first, *answer.token_ids]
    return answer


@pytest.mark.parametrize("case", ["lfm2", "qwen3_5_text"])
@pytest.mark.parametrize("kept", [0, 7, 23, 24, 27, 29, 30])
def test_a_conversation_goes_on_from_where_it_is_or_starts_anew(case, kept):
    """Guards a chat whose earlier text changes: states know one place only, so it is read again."""
    engine = selfspec.load(model_of(case))
    engine.runtime.block = 6
    asked = TOKENS[:24]
    said = [*asked, *engine.generate(asked, max_new_tokens=6, ignore_eos=True).token_ids]
    then = [*said[:kept], 5, 6, 7]
    found = another_turn(engine, asked, then, draft="early_exit", exit_layer=2, gamma=4)
    want = engine.generate(then, max_new_tokens=6, ignore_eos=True)
    assert found.token_ids == want.token_ids
    # the last token of an answer is pending: it is read with what comes next
    rows = len(then) - 29 if kept >= 29 else len(then)
    assert found.stats.prefill_row_layers == 4 * rows


def test_going_back_without_asking_would_be_seen(monkeypatch):
    """The negative control of the test above."""
    monkeypatch.setattr(TorchCache, "rewinds", lambda *_: True)
    with pytest.raises(AssertionError):
        test_a_conversation_goes_on_from_where_it_is_or_starts_anew("qwen3_5_text", 7)


@pytest.mark.parametrize("case", ["lfm2", "qwen3_5_text", "mistral"])
def test_a_prefill_that_failed_is_not_taken_for_what_was_there_before(case):
    """Guards an interrupted turn: it has overwritten states, and cells of rings, that the turn before had left."""
    engine = selfspec.load(model_of(case))
    engine.runtime.block, engine.runtime.most_rows = 6, 6
    memory, asked = Memory(), TOKENS[:10]

    def ask(prompt, **options):
        stream = engine.stream(prompt, max_new_tokens=6, ignore_eos=True, **options)
        stream.attach(memory, lambda _: None)
        return stream.completion.token_ids

    def fail(_tokens, _logits):
        raise RuntimeError("on purpose")

    said = [*asked, *ask(asked)]
    with pytest.raises(RuntimeError, match="on purpose"):
        ask([*said, *TOKENS[20:60]], processors=(fail,))
    then = [*said, 9, 9]
    assert ask(then) == engine.generate(then, max_new_tokens=6, ignore_eos=True).token_ids


# -- what is refused --------------------------------------------------------------------------------------


@EVERY
def test_trees_are_refused_in_one_line(kind):
    """Guards trees, whose branches would need a state each: before anything runs, and in a plug-in's draft."""
    runtime = tiny_hybrid(kind)
    for name in ("ngram", "early_exit"):
        with pytest.raises(OptionError, match=r"chains only: leave siblings at 0$"):
            drafters.create(name, runtime.config, {"siblings": 2})
        drafters.create(name, runtime.config, {"siblings": 0})
    assert not any("siblings" in candidate.options for candidate in default_candidates(runtime.config))
    with pytest.raises(OptionError, match=r"clasp runs rows aside"):
        drafters.create("clasp", runtime.config, {})
    with pytest.raises(
        OptionError, match=r"has no recurrent layers, and this model needs them: use another drafter"
    ):
        Engine(runtime, None, "tiny").generate(TOKENS, draft="quantized")
    context = Context(runtime, runtime.new_cache(1, 9))
    with pytest.raises(OptionError, match="cannot run aside"):
        context.replay(FULL, None, None, np.array([1]))
    want = [text.tokens for text in run(runtime, [TOKENS[:5]], new_tokens=12)]
    with pytest.raises(OptionError, match="a draft is a tree"):
        run(runtime, [TOKENS[:5]], Bush(runtime.config, want), new_tokens=12)


# -- bugs of published decoders ---------------------------------------------------------------------------

SPECULATION = [
    {"draft": "ngram", "adaptive": False, "gamma": 5},
    {"draft": "early_exit", "exit_layer": 1, "gamma": 3},
    {"draft": "early_exit", "exit_layer": 3, "gamma": 6, "confidence": 0.02},
]


def generated(case, prompt, count):
    """Plain greedy decoding of transformers."""
    with wide():
        out = model_of(case).generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
        )
    return tuple(out[0, len(prompt) :].tolist())


@pytest.mark.parametrize("case", [case for case in HYBRIDS if ":" not in case])
def test_a_hybrid_model_answers_the_same_with_every_draft(case):
    """Transformers PR #46937: LFM2 left greedy decoding, its convolution was not rolled back; Qwen3-Next: refused.

    mlx-lm #1446, llama.cpp PR #20080 and #28123: Qwen3.5, crashed, wrong, or not supported.
    """
    prompt = [5, 17, 3, 9, 5, 17, 3]
    want = generated(case, prompt, 24)
    engine = selfspec.load(model_of(case))
    for options in SPECULATION:
        done = engine.generate(prompt, max_new_tokens=24, ignore_eos=True, **options)
        assert done.token_ids == want
        assert done.stats.drafted
    coupled = {"temperature": 1.0, "seed": 3, "coupled": True, "max_new_tokens": 24, "ignore_eos": True}
    plain = engine.generate(prompt, draft="plain", **coupled)
    assert engine.generate(prompt, **coupled, **SPECULATION[1]).token_ids == plain.token_ids
