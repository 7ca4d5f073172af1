"""Many texts in one loop: each is what it is alone, whoever drafts, joins, leaves or fails beside it."""

from __future__ import annotations

import pytest
from doubles import tiny_runtime

import selfspec
from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.decode import Loop, decode
from selfspec.drafters.ngram import Ngram
from selfspec.drafters.scripted import Scripted, ScriptedOptions
from selfspec.errors import ConstraintError, OptionError, OutOfMemoryError, PromptError
from selfspec.measure.toy import MarkovRuntime
from selfspec.reference import oracle
from selfspec.rounds import Stats
from selfspec.sampling import Chance
from selfspec.types import Sampling

PLAIN = ("plain", {})
DRAFTS = [
    PLAIN,
    ("ngram", {"adaptive": False, "gamma": 5}),
    ("ngram", {"adaptive": False, "gamma": 3, "siblings": 2}),
    ("early_exit", {"exit_layer": 3, "gamma": 2}),
    ("early_exit", {"exit_layer": 1, "gamma": 4, "siblings": 2}),
    ("early_exit", {"exit_layer": 4, "gamma": 6, "confidence": 0.05, "adaptive": True}),
]
LAWS = [Sampling(), Sampling(0.9), Sampling(1.2, top_k=9, top_p=0.9), Sampling(1.0, coupled=True)]
PROMPTS = [[5, 17, 3, 3, 42, 5, 17], [1], [9, 9, 9, 9, 2], list(range(30)), [4, 4], [60, 1, 60, 1]]


@pytest.fixture(scope="module")
def runtime():
    return tiny_runtime()


def remembered(drafter):
    """The texts for which a drafter keeps anything."""
    kept = (value for value in vars(drafter).values() if isinstance(value, dict))
    return {text for value in kept for text in value if isinstance(text, Text)}


def text_of(i, slot, sampling, *, new=17, ends=lambda _: False):
    prompt = PROMPTS[i % len(PROMPTS)]
    return Text(i, slot, list(prompt), len(prompt) + new, sampling, Chance(40 + i), ends)


def alone(runtime, i, sampling, drafter, **changes):
    """The same text in a loop of its own."""
    text = text_of(i, 0, sampling, **changes)
    for _ in decode(Context(runtime, runtime.new_cache(1, text.limit)), [text], drafter):
        pass
    return text


def made(runtime, case):
    return drafters.create(case[0], runtime.config, case[1])


@pytest.mark.parametrize("sampling", LAWS, ids=["greedy", "warm", "cut", "coupled"])
def test_texts_that_join_and_leave_are_what_they_are_alone(runtime, sampling):
    """Guards the whole loop: every drafter, γ, length and end beside every other, joining in mid-flight."""
    shared = {i: made(runtime, case) for i, case in enumerate(DRAFTS)}
    context = Context(runtime, runtime.new_cache(3, 60))
    loop, waiting, done, seen = Loop(context), list(range(14)), [], set()
    stats = {i: Stats() for i in waiting}
    while waiting or loop.texts:
        rounds = []
        if waiting and loop.free_slots:  # one a round, so that texts stand at different places
            i = waiting.pop(0)
            text = text_of(i, loop.free_slots[-1], sampling, new=5 + 3 * i % 11)
            done.append(text)
            rounds.append(loop.add([text], shared[i % len(DRAFTS)]))
        if loop.texts:
            rounds.append(loop.turn())
        for round_ in rounds:
            seen.add(len(round_.commits))
            assert sum(c.draft_row_layers for c in round_.commits) == round_.draft_row_layers
            assert sum(c.verify_row_layers for c in round_.commits) == round_.verify_row_layers
            for commit in round_.commits:
                stats[commit.sequence].add(round_.only(commit.sequence))
    assert {1, 2, 3} <= seen
    assert not any(remembered(drafter) for drafter in shared.values())
    for text in done:
        i = text.index
        want = alone(runtime, i, sampling, made(runtime, DRAFTS[i % len(DRAFTS)]), new=5 + 3 * i % 11)
        assert (text.tokens, text.finish_reason) == (want.tokens, want.finish_reason)
        cost = stats[i].draft_row_layers + stats[i].verify_row_layers
        assert cost == (stats[i].rounds + stats[i].drafted) * 5 or DRAFTS[i % len(DRAFTS)][1].get("confidence")
    if sampling.is_greedy:
        assert done[0].tokens == PROMPTS[0] + oracle(runtime, PROMPTS[0], 5, Chance(0))


def test_a_wrong_slot_would_be_seen(runtime):
    """The negative control: two texts that share a slot of the cache do not give their own texts."""
    one, two = text_of(0, 0, LAWS[0]), text_of(3, 0, LAWS[0])
    loop = Loop(Context(runtime, runtime.new_cache(2, 60)))
    loop.add([one], made(runtime, PLAIN))
    assert loop.free_slots == [1]
    with pytest.raises(AssertionError):
        loop.add([two], made(runtime, PLAIN))
    two.slot = 1
    loop.add([two], made(runtime, PLAIN))
    two.slot = 0
    while loop.texts:
        loop.turn()
    assert [one.tokens, two.tokens] != [alone(runtime, i, LAWS[0], made(runtime, PLAIN)).tokens for i in (0, 3)]


def raising(at):
    def processor(tokens, logits):
        if len(tokens) >= at:
            raise LookupError("the user's mistake")
        return logits

    return processor


BROKEN = [
    (Sampling(processors=(raising(0),)), LookupError),
    (Sampling(processors=(raising(12),)), LookupError),
    (Sampling(1.0, processors=(raising(11),)), LookupError),
    (Sampling(forced_tokens={4: 50}, suppress_tokens=[50]), ConstraintError),
]


@pytest.mark.parametrize("case", DRAFTS[:5], ids=lambda case: "-".join(map(str, (case[0], *case[1].values()))))
@pytest.mark.parametrize(("sampling", "kind"), BROKEN, ids=["first", "greedy", "sampled", "constraint"])
def test_what_goes_wrong_with_one_text_ends_it_alone(runtime, case, sampling, kind):
    """Guards the others, and the slot and the drafter's memory of the one that failed."""
    drafter = made(runtime, case)
    texts = [text_of(0, 0, LAWS[1]), text_of(0, 1, sampling), text_of(2, 2, LAWS[0])]
    loop = Loop(Context(runtime, runtime.new_cache(3, 60)))
    loop.add(texts, drafter)
    while loop.texts:
        loop.turn()
        assert not remembered(drafter) - set(loop.texts)
    assert isinstance(texts[1].error, kind)
    assert (texts[1].finish_reason, remembered(drafter), loop.free_slots) == (None, set(), [0, 1, 2])
    assert len(texts[1].tokens) <= 12
    for text, i in ((texts[0], 0), (texts[2], 2)):
        assert text.error is None
        assert text.tokens == alone(runtime, i, text.sampling, made(runtime, case)).tokens
    with pytest.raises(kind):
        alone(runtime, 0, sampling, made(runtime, case))


def test_a_drafter_that_raises_ends_its_own_texts():
    """Guards plug-ins: the texts of another drafter run on."""
    runtime = MarkovRuntime()

    def script(tokens, gamma):
        return [9] if len(tokens) > 10 else []

    broken = Scripted(ScriptedOptions(script=script), runtime.config)
    texts = [Text(i, i, [0], 40, Sampling(), Chance(i), lambda _: False) for i in range(4)]
    loop = Loop(Context(runtime, runtime.new_cache(4, 40)))
    loop.add(texts[:2], broken)
    loop.add(texts[2:], made(runtime, ("ngram", {"adaptive": False})))
    while loop.texts:
        loop.turn()
    assert [type(text.error) for text in texts] == [OptionError, OptionError, type(None), type(None)]
    assert [len(text.tokens) for text in texts] == [11, 11, 40, 40]


def test_closing_lets_go_of_every_text(runtime):
    """Guards a consumer that leaves: no drafter remembers a text."""
    drafter = made(runtime, DRAFTS[1])
    loop = Loop(Context(runtime, runtime.new_cache(2, 60)))
    loop.add([text_of(0, 0, LAWS[0]), text_of(2, 1, LAWS[0])], drafter)
    loop.turn()
    assert remembered(drafter) == set(loop.texts)
    loop.close()
    assert (loop.texts, remembered(drafter)) == ((), set())


# -- the engine -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tiny):
    # drafts as long as they are expected to pay depend on the clock, and so do the counts
    options = {"draft": "ngram", "adaptive": False}
    return selfspec.load(tiny, dtype="float64", max_new_tokens=24, ignore_eos=True, **options)


REQUESTS = [
    "hello there",
    {"prompt": "abcabcabcabc", "draft": "ngram", "adaptive": False, "gamma": 7, "max_new_tokens": 60},
    {"messages": [{"role": "user", "content": "hi"}], "temperature": 1.2, "seed": 5},
    [7, 8, 9],
    {"prompt": [7, 8, 9], "draft": "early_exit", "exit_layer": 3, "gamma": 3, "temperature": 0.7, "seed": 2},
    {"prompt": "", "seed": 4},
    {"prompt": "x", "draft": "early_exit", "exit_layer": 2, "siblings": 2, "max_new_tokens": 5},
    {"prompt": "x", "exit_layer": 2},
    {"prompt": "hello", "draft": "plain", "repetition_penalty": 1.3, "stop": ["e", "\n"]},
    {"prompt": "hello there", "temperature": 1.0, "seed": 5, "coupled": True, "system": "Be brief."},
    {"prompt": "a" * 5000},
    {"prompt": "once", "max_new_tokens": 1},
]
WRONG = {5: PromptError, 7: OptionError, 10: PromptError}


def by_itself(engine, request):
    request = dict(request) if isinstance(request, dict) else {"prompt": request}
    return engine.generate(request.pop("prompt", None), **request)


@pytest.mark.parametrize("slots", [1, 3, 20])
def test_every_result_is_that_of_generate(engine, slots):
    """Guards the promise of `Engine.batch`, exactly, in float64: options, seeds, stops and errors per request."""
    found = dict(engine.batch(iter(REQUESTS), slots=slots))
    assert sorted(found) == list(range(len(REQUESTS)))
    for index, request in enumerate(REQUESTS):
        if index in WRONG:
            assert type(found[index]) is WRONG[index]
            with pytest.raises(WRONG[index], match="^" + str(found[index])[:20]):
                by_itself(engine, request)
            continue
        want, got = by_itself(engine, request).to_dict(), found[index].to_dict()
        changing = {name for name in want if "second" in name} | {"kv_bytes", "seed"}
        assert {k: v for k, v in got.items() if k not in changing} == {
            k: v for k, v in want.items() if k not in changing
        }


def test_options_of_the_batch_are_defaults_for_its_requests(engine):
    """Guards the three levels: the engine's options, the batch's, the request's own."""
    asked = [{"prompt": "a"}, {"prompt": "a", "max_new_tokens": 3}, {"prompt": "a", "draft": "plain"}]
    found = dict(engine.batch(asked, draft="early_exit", exit_layer=3, gamma=2, max_new_tokens=6))
    assert [len(found[i].token_ids) for i in range(3)] == [6, 3, 6]
    assert [(found[i].draft, found[i].plan, found[i].gamma) for i in (0, 2)] == [
        ("early_exit", "exit 3/4", 2),
        ("plain", "none", 0),
    ]


def test_results_come_as_texts_end_and_requests_are_read_as_slots_become_free(engine):
    """Guards continuous batching: a short text does not wait for a long one, nor the input for the output."""
    read = []

    def requests():
        for i, count in enumerate([40, 3, 3, 3]):
            read.append(i)
            yield {"prompt": "hello", "max_new_tokens": count, "draft": "plain"}

    order = []
    for index, _ in engine.batch(requests(), slots=2):
        order.append((index, len(read)))
    assert order == [(1, 2), (2, 3), (3, 4), (0, 4)]


def test_texts_with_equal_drafters_are_drafted_for_together(engine, monkeypatch):
    """Guards one pass per step for all of them: a drafter of its own per text would be as slow as one by one."""
    sizes = []
    propose = Ngram.propose

    def counted(self, context, texts, gammas):
        sizes.append(len(texts))
        return propose(self, context, texts, gammas)

    monkeypatch.setattr(Ngram, "propose", counted)
    list(engine.batch(["a", "b", {"prompt": "c", "gamma": 7}, {"prompt": "d", "gamma": 2}], slots=4))
    assert max(sizes) == 3


def test_the_cache_is_as_long_as_the_longest_text_so_far(engine):
    """Guards the memory: slots x longest, grown when a longer text joins, and no more slots than texts."""
    per_token = engine.generate([1], max_new_tokens=1).kv_bytes // 2
    asked = [{"prompt": [1, 2], "max_new_tokens": n} for n in (8, 3, 30, 2)]
    found = dict(engine.batch(asked, slots=2))
    assert [found[i].kv_bytes // per_token for i in range(4)] == [32, 10, 32, 32]  # text 0 ends last
    assert dict(engine.batch(asked[:1], slots=64))[0].kv_bytes == 10 * per_token


def test_closing_a_batch_early_leaves_the_engine_usable(engine):
    """Guards a consumer that stops after the first result."""
    want = engine.generate("hello there").text
    results = engine.batch(["hello there"] * 5, slots=2)
    assert next(results)[1].text == want
    results.close()
    assert engine.generate("hello there").text == want


def test_out_of_memory_is_one_error_for_all(engine, monkeypatch):
    """Guards the one failure that is nobody's own: a cache that does not fit, at the start or when it grows."""
    import torch

    def full(*_, **__):
        raise torch.OutOfMemoryError("can't allocate memory")

    results = engine.batch([{"prompt": [1], "max_new_tokens": 2}, {"prompt": [1], "max_new_tokens": 3}], slots=1)
    next(results)
    monkeypatch.setattr("selfspec.runtime.torch_cache._lengthened", full)
    with pytest.raises(OutOfMemoryError, match="fewer texts at once"):
        next(results)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"requests": ["a"], "slots": 0}, OptionError, "slots is 0"),
        ({"requests": ["a"], "slots": True}, OptionError, "slots is True"),
        ({"requests": "abc"}, PromptError, "a list of prompts"),
        ({"requests": {"prompt": "a"}}, PromptError, "a list of prompts"),
        ({"requests": 5}, PromptError, "a list of prompts"),
        ({"requests": ["a"], "temperature": -1}, OptionError, "temperature is -1"),
        ({"requests": ["a"], "exit_layer": 1}, OptionError, "no option exit_layer"),
    ],
)
def test_mistakes_in_the_arguments_are_raised_at_once(engine, arguments, kind, words):
    """Guards a generator that would complain only when it is read."""
    with pytest.raises(kind, match=words):
        engine.batch(**arguments)


@pytest.mark.parametrize("value", [None, 5, 2.5, "x", "\ud800", True, [], [[]], [1], ["a"], {}, {"a": 1}])
def test_any_json_in_a_request_gives_a_result_or_an_error_of_ours(engine, value):
    """Guards the others against one line of nonsense: no field may raise what a batch does not expect."""
    from dataclasses import fields

    from selfspec.request import Request

    names = ["prompt", "messages", *(f.name for f in fields(Request)), "gamma", "siblings", "nothing"]
    asked = [{"prompt": "hi", "max_new_tokens": 2, name: value} for name in names]
    found = dict(engine.batch([*asked, "hi"], slots=4, max_new_tokens=2))
    assert len(found) == len(names) + 1
    for index, result in found.items():
        ours = not isinstance(result, Exception) or isinstance(result, selfspec.SelfspecError)
        assert ours, (names[index], value, result)


def test_nothing_gives_nothing(engine):
    """Guards an empty list."""
    assert list(engine.batch([])) == []
