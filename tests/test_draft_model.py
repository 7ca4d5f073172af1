"""A second model as the drafter: its cache, its vocabulary, its costs, and what is refused."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from itertools import zip_longest

import numpy as np
import pytest
import torch
from doubles import Host, run, tiny_core, tiny_runtime
from lossless_table import PROMPTS
from tiny_folder import write_model

import selfspec
from selfspec import drafters
from selfspec.drafters.draft_model import DraftModel, DraftModelOptions, _Reading
from selfspec.errors import CorruptModelError, ModelError, ModelNotFoundError, OptionError, UnsupportedModelError
from selfspec.measure.laws import loop_law, plain_law, total_variation
from selfspec.measure.toy import MarkovRuntime
from selfspec.runtime.torch import TorchRuntime
from selfspec.types import Dense, LayerPlan, Rows, Sampling

LAWS = [Sampling(), Sampling(0.7), Sampling(1.2), Sampling(0.7, coupled=True)]


@pytest.fixture(scope="module")
def target():
    return tiny_runtime()


def made(target, draft, tokenizer=None, **options):
    host = Host(target, {"draft": draft}, tokenizer)
    return drafters.create("draft_model", target.config, {"draft_model": "draft", **options}, host)


def counted(target, drafter, sampling=LAWS[0], **changes):
    """The texts of a batch, and its rounds after the prefill."""
    rounds = []
    texts = run(target, PROMPTS, drafter, sampling=sampling, each_round=lambda c, t, r: rounds.append(r), **changes)
    return texts, rounds[1:]


def acceptance(rounds):
    commits = [commit for round_ in rounds for commit in round_.commits]
    return sum(c.accepted for c in commits) / sum(c.drafted for c in commits)


class Spy(TorchRuntime):
    """Keeps the rows of every pass."""

    def __init__(self, runtime):
        self.__dict__ |= runtime.__dict__
        self.passes = []

    def run(self, hidden, plan, rows, cache, taps=()):
        self.passes.append(rows)
        return super().run(hidden, plan, rows, cache, taps)


# -- its cache --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", LAWS, ids=["greedy", "0.7", "1.2", "coupled"])
@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_a_twin_of_the_target_is_always_right(target, sampling, gamma):
    """Guards the draft's cache: one row missing or wrong, and a model would not agree with itself."""
    _, rounds = counted(target, made(target, tiny_runtime(), gamma=gamma), sampling)
    assert acceptance(rounds) == 1.0


def test_the_row_missing_after_a_whole_draft_would_be_seen(target, monkeypatch):
    """The negative control of the classic bug: the last token of a draft that was accepted whole has no KV."""
    want, _ = counted(target, "plain")
    drafter = made(target, tiny_runtime(), gamma=2)
    resume = _Reading.resume

    def one_short(self, tokens):
        first = resume(self, tokens)
        return len(tokens) - 1 if self.known else first

    monkeypatch.setattr(_Reading, "resume", one_short)
    texts, rounds = counted(target, drafter)
    assert acceptance(rounds) < 0.95
    assert [text.tokens for text in texts] == [text.tokens for text in want]  # slower, and right all the same


def test_the_cache_is_that_of_a_fresh_prefill_and_no_row_runs_twice(target):
    """Guards the catch-up after drafts that were accepted in part; its price is a row more after a whole one."""
    draft = Spy(tiny_runtime(num_layers=4))
    drafter, kinds = made(target, draft, gamma=2), set()

    def check(context, texts, round_):
        if round_.index:
            kinds.update(commit.accepted for commit in round_.commits if commit.depth == 2)
            (cache,) = drafter._caches.values()
            for text in (t for t in texts if t in drafter._readings):
                known = drafter._readings[text].known  # committed before this round
                fresh = draft.new_cache(1, known)
                rows = Rows.of([0] * known, range(known))
                TorchRuntime.run(draft, draft.embed(text.tokens[:known]), LayerPlan.full(4), rows, fresh)
                for ours, theirs in zip(cache.keys + cache.values, fresh.keys + fresh.values, strict=True):
                    assert (ours[text.slot, :known] - theirs[0]).abs().max() < 1e-12

    run(target, PROMPTS, drafter, new_tokens=30, each_round=check)
    assert kinds == {0, 1, 2}
    first, *later = draft.passes
    assert len(first) == sum(map(len, PROMPTS)) + len(PROMPTS)  # the prompts and their first tokens, in one pass
    sizes = [np.bincount(rows.slots).max() for rows in later]
    assert set(sizes) == {1, 2}


def test_a_long_prompt_is_read_in_chunks(target, monkeypatch):
    """Guards the memory of a prefill."""
    monkeypatch.setattr("selfspec.drafters.draft_model.PREFILL_ROWS", 8)
    draft = Spy(tiny_runtime())
    _, rounds = counted(target, made(target, draft))
    assert acceptance(rounds) == 1.0
    assert max(map(len, draft.passes)) == 8


def test_rounds_that_others_drafted_are_caught_up(target):
    """Guards a drafter that is asked now and then: what it has not read is run, however much it is."""

    class Seldom(DraftModel):
        def propose(self, context, texts, gammas):
            asked = [gamma if len(text.tokens) % 3 == 0 else 0 for text, gamma in zip(texts, gammas, strict=True)]
            return super().propose(context, texts, asked)

    drafter = Seldom(DraftModelOptions(draft_model="draft"), target.config)
    drafter.bind(Host(target, {"draft": tiny_runtime()}))
    _, rounds = counted(target, drafter, new_tokens=40)
    assert acceptance(rounds) == 1.0
    assert any(not commit.drafted for round_ in rounds for commit in round_.commits)


def test_nothing_is_drafted_past_the_context_of_the_draft_model(target):
    """Guards a draft model with a shorter context: from its end on the text goes on undrafted."""
    want, _ = counted(target, "plain", new_tokens=40)
    drafter = made(target, tiny_runtime(context_length=24), gamma=3)
    texts, rounds = counted(target, drafter, new_tokens=40)
    assert [text.tokens for text in texts] == [text.tokens for text in want]
    assert acceptance(rounds) == 1.0
    last = rounds[-1].commits
    assert last
    assert not any(commit.drafted for commit in last)


def test_streams_of_one_drafter_do_not_mix_and_nothing_stays(target):
    """Guards state per text: two contexts, the same slot of each; ended early, all of it is freed."""
    from selfspec.context import Context, Text
    from selfspec.decode import decode
    from selfspec.sampling import Chance

    drafter = made(target, tiny_runtime())

    def stream(prompt):
        text = Text(0, 0, list(prompt), len(prompt) + 24, Sampling(), Chance(0), lambda _: False)
        return text, decode(Context(target, target.new_cache(1, text.limit)), [text], drafter)

    (one, first), (two, second) = stream(PROMPTS[0]), stream(PROMPTS[3])
    for _ in zip_longest(first, second):
        pass
    want, _ = counted(target, "plain")
    assert [one.tokens, two.tokens] == [want[0].tokens, want[3].tokens]
    _, third = stream(PROMPTS[1])
    next(third), next(third)
    assert len(drafter._caches) == len(drafter._readings) == 1
    third.close()
    del third, first, second
    gc.collect()
    assert len(drafter._caches) == len(drafter._readings) == 0


# -- its law ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_texts_have_the_plain_law(seed):
    """Guards sampled drafts of another model, by exact enumeration: chains, combs and stops."""
    random, size = np.random.default_rng(seed), 3
    runtime = MarkovRuntime(size, 3, seed=seed)
    sampling = Sampling(float(random.choice([0.5, 1.2])), frequency_penalty=0.4)
    options = {
        "gamma": int(random.choice([1, 2, 3])),
        "siblings": int(random.choice([0, 1])),
        "confidence": float(random.choice([0.0, 0.5])),
    }
    hidden, _ = runtime.run(runtime.embed(range(size)), LayerPlan.full(3), None, None)
    start, end = ([0], 3), int(random.choice([-1, 1]))
    want = plain_law(lambda tokens: runtime.logits(hidden)[tokens[-1]].copy(), *start, sampling, lambda t: t == end)
    drafter = made(runtime, MarkovRuntime(size, 2, seed=seed + 50), **options)
    assert total_variation(want, loop_law(runtime, start, sampling, drafter, lambda t: t == end)) < 1e-12


def test_drafters_may_differ_within_a_batch(target):
    """Guards mixed batches: texts of two draft models, an early exit and none in the same passes."""
    from selfspec.context import Context, Text
    from selfspec.decode import Loop
    from selfspec.sampling import Chance

    want, _ = counted(target, "plain")
    loop = Loop(Context(target, target.new_cache(4, 60)))
    kinds = [
        made(target, tiny_core("int4"), gamma=3),
        made(target, tiny_runtime(num_layers=2), gamma=2, siblings=1),
        drafters.create("early_exit", target.config, {"exit_layer": 3}),
        drafters.create("plain", target.config, {}),
    ]
    texts = [
        Text(i, i, list(p), len(p) + 24, Sampling(), Chance(0, i), lambda _: False) for i, p in enumerate(PROMPTS)
    ]
    for text, drafter in zip(texts, kinds, strict=True):
        loop.add([text], drafter)
    while loop.texts:
        loop.turn()
    assert [text.tokens for text in texts] == [text.tokens for text in want]


@pytest.mark.parametrize(("ours", "theirs"), [(np.asarray, torch.tensor), (torch.tensor, np.asarray)])
def test_laws_of_two_libraries_meet(ours, theirs):
    """Guards a target on a GPU with a draft in the core, and the reverse: what is left is the target's."""
    p, q = Dense(ours([0.5, 0.3, 0.2])), Dense(theirs([0.2, 0.7, 0.1]))
    rest = p.minus(q)
    assert type(rest.probs) is type(p.probs)
    assert rest.probs.tolist() == pytest.approx([0.75, 0.0, 0.25])
    assert p.excess(q, 0.8) == pytest.approx(0.2 + 0.06)


# -- its vocabulary ---------------------------------------------------------------------------------------


class Words:
    """A tokenizer, as far as vocabularies are compared."""

    def __init__(self, size, **others):
        self.pieces = {str(i): f"t{i}" for i in range(size)} | others

    def piece(self, token):
        return self.pieces.get(str(token))


def padded(runtime, rows):
    """The same model with ``rows`` embeddings: cut, or filled with random ones, much likelier than tokens."""
    weights, random = dict(runtime.weights), torch.Generator().manual_seed(1)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        extra = 9.0 * torch.randn(max(0, rows - 61), 32, generator=random, dtype=torch.float64)
        weights[name] = torch.cat([weights[name][:rows], extra])
    return TorchRuntime(replace(runtime.config, vocab_size=rows), weights)


@pytest.mark.parametrize(("ours", "theirs"), [(61, 64), (64, 61), (61, 61)])
@pytest.mark.parametrize("sampling", LAWS, ids=["greedy", "0.7", "1.2", "coupled"])
def test_padding_of_either_vocabulary(ours, theirs, sampling):
    """Guards tables of 151,936 and 152,064 rows: what is not a token of the target is never drafted."""
    target, draft = padded(tiny_runtime(), ours), padded(tiny_runtime(), theirs)
    host = Host(target, {"draft": draft}, Words(61))
    drafter = drafters.create("draft_model", target.config, {"draft_model": "draft", "siblings": 1}, host)
    want = run(target, PROMPTS, "plain", sampling=sampling)
    texts, rounds = counted(target, drafter, sampling)
    assert all(token < ours for text in texts for token in text.tokens)
    if sampling.is_greedy or sampling.coupled:
        assert [text.tokens for text in texts] == [text.tokens for text in want]
    drafted = sum(commit.drafted for round_ in rounds for commit in round_.commits)
    assert drafted > 0
    if ours <= theirs:
        assert acceptance(rounds) > 0.4  # of two siblings one may hold


def host_with(tokenizer, draft_tokenizer, draft):
    host = Host(tiny_runtime(), {"draft": draft}, tokenizer)
    open_model = host.open_model
    host.open_model = lambda model, **placed: open_model(model, **placed)._replace(tokenizer=draft_tokenizer)
    return host


def test_another_tokenizer_is_refused_with_its_first_difference():
    """Guards against drafting gibberish: token ids must mean the same."""
    options = DraftModelOptions(draft_model="draft")
    for other in (Words(61, **{"7": "x"}), Words(40, **{"7": "x", "50": "y"})):
        with pytest.raises(UnsupportedModelError, match=r"token 7 is 'x' there and 't7' in this model"):
            DraftModel(options, tiny_runtime().config).bind(host_with(Words(61), other, tiny_runtime()))
    for same in (Words(61), Words(58), Words(70)):
        DraftModel(options, tiny_runtime().config).bind(host_with(Words(61), same, tiny_runtime(vocab_size=70)))
    with pytest.raises(UnsupportedModelError, match="draft has 70 tokens and this model 61, and without both"):
        DraftModel(options, tiny_runtime().config).bind(host_with(None, Words(61), tiny_runtime(vocab_size=70)))


# -- its costs --------------------------------------------------------------------------------------------


def test_rows_are_counted_in_layers_of_the_target(target):
    """Guards the price list: a row of the draft costs its layers, by their share of the target's parameters."""
    draft = Spy(tiny_runtime(num_layers=2, intermediate_size=16))
    _, rounds = counted(target, made(target, draft))
    share = draft.config.layer_parameters / target.config.layer_parameters
    assert 0.3 < share < 0.9
    want = sum(len(rows) for rows in draft.passes) * 2 * share
    assert sum(round_.draft_row_layers for round_ in rounds) == pytest.approx(want)


def test_extra_bytes_are_what_is_held(target):
    """Guards the price list: weights as they are held, and the cache of one text."""
    draft = tiny_runtime(num_layers=2, dtype="float32")
    drafter = made(target, draft)
    assert drafter.extra_bytes == (sum(w.nbytes for w in draft.weights.values()), 0)
    seen = set()
    run(target, PROMPTS, drafter, each_round=lambda c, t, r: seen.update(drafter._caches.values()))
    assert drafter.extra_bytes.kv == max(cache.nbytes for cache in seen) // len(PROMPTS)
    assert drafter.extra_bytes.kv == max(cache.length for cache in seen) * 2 * 2 * 2 * 8 * 4
    core = tiny_core("int4")
    assert made(target, core).extra_bytes.weights == core.weight_bytes < core.config.parameters


# -- with an engine ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """A smaller model with the tokenizer of ``tiny``."""
    return write_model(tmp_path_factory.mktemp("second") / "small", num_hidden_layers=2)


def test_an_engine_opens_the_model_once_for_all(tiny, second):
    """Guards weights that are shared by requests, batches and turns of a chat; and their report."""
    engine = selfspec.load(tiny, draft="draft_model", draft_model=second, gamma=3)
    (opened,) = [found for key, found in engine._kept.items() if key[0] == "model"]
    options = {"max_new_tokens": 24, "ignore_eos": True}
    plain = engine.generate("hello there", draft="plain", **options)
    done = engine.generate("hello there", **options)
    assert done.token_ids == plain.token_ids
    assert (done.draft, done.plan) == ("draft_model", "small float32")
    assert done.draft_weight_bytes == opened.runtime.weight_bytes > 0
    assert 0 < done.draft_kv_bytes < done.kv_bytes
    assert (plain.draft_weight_bytes, plain.draft_kv_bytes) == (0, 0)
    assert done.to_dict()["draft_kv_bytes"] == done.draft_kv_bytes
    results = dict(engine.batch(["hello there", "x", "hello there"], slots=2, **options))
    assert [results[i].token_ids for i in (0, 2)] == [plain.token_ids] * 2
    chat = engine.chat()
    assert [len(chat.say(text, **options).completion.token_ids) for text in ("hi", "and?")] == [24, 24]
    assert (
        engine.generate("hi", draft_bits=8, draft="draft_model", draft_model=second, **options).plan == "small int8"
    )
    models = [key for key in engine._kept if key[0] == "model"]
    assert len(models) == 2
    gone = weakref.ref(opened.runtime)
    del engine, opened, chat, results
    gc.collect()
    assert gone() is None


def test_a_draft_in_the_core_for_a_target_in_torch(tiny, second):
    """Guards two runtimes in one loop, and where the draft is placed by default."""
    engine = selfspec.load(tiny, dtype="float64")
    options = {"max_new_tokens": 24, "ignore_eos": True}
    plain = engine.generate("hello there", draft="plain", **options)
    for own, plan in (
        ({}, "small float32"),
        ({"draft_bits": 8}, "small int8"),
        ({"draft_threads": 1}, "small float32"),
    ):
        done = engine.generate("hello there", draft="draft_model", draft_model=second, **own, **options)
        assert (done.token_ids, done.plan) == (plain.token_ids, plan)
    runtimes = {found.runtime.name for key, found in engine._kept.items() if key[0] == "model"}
    assert runtimes == {"cpu", "torch"}


def test_what_is_refused(tiny, second, tmp_path):
    """Guards the errors, at load and not at the first token: one line that says what to do."""
    for options, error, said in (
        ({}, OptionError, "draft_model is None; it must name the model"),
        ({"draft_model": 3}, OptionError, "draft_model is 3"),
        ({"draft_model": str(tmp_path / "none")}, ModelNotFoundError, "no folder or file"),
        ({"draft_model": second, "draft_runtime": "gpu"}, OptionError, "draft_runtime is 'gpu'; it must be one of"),
        ({"draft_model": second, "draft_bits": 5}, OptionError, "draft_bits is 5; it must be one of 4, 8, 16, 32"),
        ({"draft_model": second, "draft_threads": 0}, OptionError, "draft_threads is 0"),
        ({"draft_model": second, "draft_runtime": "torch", "draft_bits": 8}, OptionError, "for draft_runtime cpu"),
    ):
        with pytest.raises(error, match=said):
            selfspec.load(tiny, draft="draft_model", **options)
    damaged = write_model(tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CorruptModelError, match="damaged"):
        selfspec.load(tiny, draft="draft_model", draft_model=damaged)


def test_a_draft_model_with_damaged_weights_says_whose_they_are(target):
    """Guards the blame: NaN comes from the draft, and the target is sound."""
    draft = tiny_runtime()
    draft.weights["model.norm.weight"].fill_(float("nan"))
    with pytest.raises(ModelError, match=r"draft_model \(draft float64\) cannot draft: the largest logit is nan"):
        run(target, [PROMPTS[0]], made(target, draft))
