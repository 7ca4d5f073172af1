"""Text in, text out: prompts, ends, streams, options, conversations; speculative text is the plain text."""

from __future__ import annotations

import asyncio
import json
from itertools import zip_longest

import numpy as np
import pytest
import torch

import selfspec
from selfspec.drafters.scripted import Scripted, ScriptedOptions
from selfspec.errors import ModelNotFoundError, OptionError, PromptError

DRAFTS = [
    {"draft": "ngram", "adaptive": False, "gamma": 5},
    {"draft": "early_exit", "exit_layer": 3, "gamma": 3},
    {"draft": "early_exit", "exit_layer": 2, "gamma": 8, "confidence": 0.02, "adaptive": True},
]


@pytest.fixture(scope="module")
def engine(tiny):
    return selfspec.load(tiny, draft="plain", dtype="float64")


@pytest.fixture(scope="module")
def plain(engine):
    """A long plain answer; the tiny model writes random bytes, partly not UTF-8."""
    return engine.generate("hello there", max_new_tokens=120, ignore_eos=True)


@pytest.mark.parametrize("draft", DRAFTS)
def test_speculative_text_is_the_plain_text(engine, plain, draft):
    """Guards the whole way from prompt to text."""
    done = engine.generate("hello there", max_new_tokens=120, ignore_eos=True, **draft)
    assert (done.text, done.token_ids, done.finish_reason) == (plain.text, plain.token_ids, "length")


@pytest.mark.parametrize("draft", [{}, *DRAFTS])
def test_stop_strings_cut_where_plain_decoding_stops(engine, plain, draft):
    """Guards stop strings inside an accepted run: text and tokens end where plain decoding ends."""
    for start in range(0, len(plain.text) - 3, 5):
        stop = plain.text[start : start + 3]
        if "\ufffd" in stop:
            continue
        done = engine.generate("hello there", max_new_tokens=120, ignore_eos=True, stop=stop, **draft)
        alone = engine.generate("hello there", max_new_tokens=120, ignore_eos=True, stop=stop)
        assert done.text == plain.text[: plain.text.index(stop)]
        assert (done.token_ids, done.finish_reason) == (alone.token_ids, "stop")


@pytest.mark.parametrize("draft", [{}, *DRAFTS])
def test_end_of_text_cuts_and_is_not_text(engine, plain, draft, monkeypatch):
    """Guards end-of-text inside an accepted run (HF #47912): the token counts, its text does not."""
    eos = plain.token_ids[40]
    cut = plain.token_ids.index(eos)
    monkeypatch.setattr(engine, "config", replace_eos(engine.config, eos))
    done = engine.generate("hello there", max_new_tokens=120, **draft)
    assert done.token_ids == plain.token_ids[: cut + 1]
    assert done.finish_reason == "stop"
    assert done.text == engine.tokenizer.decode(plain.token_ids[:cut])


def replace_eos(config, eos):
    from dataclasses import replace

    return replace(config, eos_token_ids=(eos,))


@pytest.mark.parametrize("draft", [{}, *DRAFTS])
def test_a_stream_is_the_text_in_pieces_and_never_half_a_character(engine, plain, draft):
    """Guards hold-back: pieces join to the text, one per token, and accepted drafts are marked."""
    stream = engine.stream("hello there", max_new_tokens=120, ignore_eos=True, **draft)
    chunks = list(stream)
    done = stream.completion
    assert "".join(chunk.text for chunk in chunks) == done.text == plain.text
    assert tuple(chunk.token for chunk in chunks) == done.token_ids
    assert sum(chunk.source == "draft" for chunk in chunks) == done.stats.accepted
    assert chunks[0].source == "plain", "a prefill drafts nothing"
    if not draft:
        assert {chunk.source for chunk in chunks} == {"plain"}
    elif done.stats.drafted:
        assert "bonus" in {chunk.source for chunk in chunks}


@pytest.mark.parametrize("draft", [{}, *DRAFTS])
def test_the_context_ends_a_text(tiny, draft):
    """Guards the context limit inside a round: no position beyond it is run, and plain stops there too."""
    engine = selfspec.load(tiny, dtype="float64")
    prompt = [7] * (engine.config.context_length - 9)
    plain = engine.generate(prompt, draft="plain", max_new_tokens=50, ignore_eos=True)
    done = engine.generate(prompt, max_new_tokens=50, ignore_eos=True, **draft)
    assert len(plain.token_ids) == 9
    assert (done.token_ids, done.finish_reason) == (plain.token_ids, "length")


def test_kv_bytes_are_plains(engine):
    """Guards the memory claim end to end: a draft does not enlarge the cache."""
    sizes = {engine.generate("hi", max_new_tokens=9, **draft).kv_bytes for draft in ({}, *DRAFTS)}
    assert len(sizes) == 1


def test_streams_may_interleave(engine, plain):
    """Guards shared state: two streams of one engine and one drafter do not mix."""
    options = {"max_new_tokens": 120, "ignore_eos": True, **DRAFTS[0]}
    one, two = engine.stream("hello there", **options), engine.stream("something else", **options)
    for _ in zip_longest(one, two):
        pass
    assert one.completion.text == plain.text
    assert two.completion.text == engine.generate("something else", **options).text


def test_closing_a_stream_leaves_the_engine_usable(engine, plain):
    """Guards an interrupted client: no state of the drafter stays behind."""
    options = {"max_new_tokens": 120, "ignore_eos": True, **DRAFTS[0]}
    with engine.stream("hello there", **options) as stream:
        next(stream)
        next(stream)
    assert list(stream) == []
    with pytest.raises(RuntimeError, match="closed"):
        _ = stream.completion
    assert engine.generate("hello there", **options).text == plain.text


def test_async_streams_and_their_cancellation(engine, plain):
    """Guards `async for`, two at once, and a cancelled consumer."""

    async def collect(stream):
        return "".join([chunk.text async for chunk in stream])

    async def main():
        options = {"max_new_tokens": 120, "ignore_eos": True, **DRAFTS[1]}
        streams = [engine.astream("hello there", **options) for _ in range(2)]
        texts = await asyncio.gather(*(collect(stream) for stream in streams))
        assert texts == [plain.text] * 2
        assert streams[0].completion.text == plain.text
        task = asyncio.create_task(collect(engine.astream("hello there", **options)))
        await asyncio.sleep(0.02)
        task.cancel()
        task.cancel()  # twice, as a timeout inside a cancelled scope does
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_seeds_repeat_and_are_reported(engine):
    """Guards reproducibility: a drawn seed is in the result, and gives the same text again."""
    first = engine.generate("hi", max_new_tokens=30, temperature=1.0)
    again = engine.generate("hi", max_new_tokens=30, temperature=1.0, seed=first.seed)
    other = engine.generate("hi", max_new_tokens=30, temperature=1.0, seed=first.seed + 1)
    assert first.token_ids == again.token_ids != other.token_ids
    drafted = engine.generate("hi", max_new_tokens=30, temperature=1.0, seed=first.seed, **DRAFTS[0])
    assert drafted.token_ids == first.token_ids


def test_coupled_samples_are_the_plain_sample(engine):
    """Guards the way from option to noise: one seed, one text, whoever drafts; other seeds, other texts."""
    options = {"max_new_tokens": 60, "temperature": 1.0, "ignore_eos": True, "coupled": True}
    alone = engine.generate("hi", seed=5, **options)
    assert alone.token_ids != engine.generate("hi", seed=6, **options).token_ids
    for draft in (*DRAFTS, {**DRAFTS[1], "siblings": 2}):
        done = engine.generate("hi", seed=5, **options, **draft)
        assert (done.text, done.token_ids) == (alone.text, alone.token_ids)
        assert done.stats.drafted > 0
    uncoupled = {**options, "coupled": False}
    drafted = engine.generate("hi", seed=5, **uncoupled, **DRAFTS[1])
    assert drafted.token_ids != engine.generate("hi", seed=5, **uncoupled).token_ids


def test_chat_is_the_default_and_can_be_left_out(engine):
    """Guards what a prompt means: text goes through the template, ids and chat=False do not."""
    rendered = engine.tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    chat = engine.generate("hi", max_new_tokens=3)
    assert chat.prompt_tokens == len(rendered)
    assert engine.generate(rendered, max_new_tokens=3).token_ids == chat.token_ids
    assert engine.generate("hi", chat=False, max_new_tokens=3).prompt_tokens == 2
    with_system = engine.generate("hi", system="be brief", max_new_tokens=3)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert with_system.token_ids == engine.generate(messages=messages, max_new_tokens=3).token_ids


def test_a_conversation_prefills_only_what_is_new(engine):
    """Guards the kept cache: same answers as without it, and fewer rows run."""
    talk = engine.chat("be brief")
    for said in ("hello there", "and then?"):
        asked = [*talk.messages, {"role": "user", "content": said}]
        answer = talk.say(said, max_new_tokens=20, **DRAFTS[0]).completion
        alone = engine.generate(messages=asked, max_new_tokens=20)
        assert answer.text == alone.text
        assert talk.messages[-1] == {"role": "assistant", "content": answer.text}
    assert answer.stats.prefill_row_layers < alone.stats.prefill_row_layers * 0.7
    with pytest.raises(PromptError):
        talk.say(" ")
    assert len(talk.messages) == 5


def test_answers_of_one_conversation_do_not_overlap(engine):
    """Guards the shared cache: a second answer while the first is open would overwrite its cells."""
    talk = engine.chat()
    first = talk.say("hello there", max_new_tokens=20, ignore_eos=True)
    next(first)
    with pytest.raises(PromptError, match="still being written"):
        talk.say("and?")
    first.close()
    assert talk.say("and?", max_new_tokens=3).completion.token_ids


@pytest.mark.parametrize("shared", [0, 3, 6])
def test_a_kept_cache_holds_what_a_fresh_prefill_would(engine, shared):
    """Guards the reuse between turns against off-by-one: any common prefix, also the whole prompt."""
    from selfspec.context import Context, Text
    from selfspec.sampling import Chance
    from selfspec.stream import Memory
    from selfspec.types import Sampling

    def prefilled(memory, tokens):
        cache, cached = memory.open(engine.runtime, tokens, len(tokens) + 1)
        text = Text(0, 0, list(tokens), len(tokens) + 1, Sampling(), Chance(0), lambda _: False, cached)
        logits = Context(engine.runtime, cache).prefill(text)
        memory.tokens = list(tokens)
        return logits, cached

    memory = Memory()
    prefilled(memory, [1, 2, 3, 4, 5, 6])
    tokens = [1, 2, 3, 4, 5, 6][:shared] + ([] if shared == 6 else [9, 8, 7])
    logits, cached = prefilled(memory, tokens)
    assert cached == min(shared, len(tokens) - 1)
    assert abs(logits - prefilled(Memory(), tokens)[0]).max() < 1e-12


def test_equal_seeds_repeat_with_an_adaptive_threshold(engine):
    """Guards state that leaks between generations: one text's drafts must not change another's."""
    options = {"temperature": 1.0, "seed": 7, "max_new_tokens": 40, **DRAFTS[2]}
    texts = {engine.generate("hello there", **options).token_ids for _ in range(3)}
    assert len(texts) == 1


def test_an_interrupted_turn_keeps_what_was_said(engine):
    """Guards Ctrl-C in a chat: the half answer is part of the conversation, and the next turn works."""
    talk = engine.chat()
    with talk.say("hello there", max_new_tokens=50, ignore_eos=True) as stream:
        heard = "".join(next(stream).text for _ in range(10))
    assert talk.messages[-1]["content"].startswith(heard)
    assert talk.say("go on", max_new_tokens=5).completion.finish_reason in {"length", "stop"}


def test_an_error_hides_nothing_that_plain_decoding_would_have_shown(engine, plain):
    """Guards a stream whose processor fails inside an accepted run: the accepted tokens before it are shown."""

    def answered(**draft):
        calls, shown = [], []

        def fails_late(tokens, logits):
            calls.append(tokens)
            if len(calls) == 10:
                raise ZeroDivisionError
            return logits

        talk = engine.chat()
        stream = talk.say("hello there", ignore_eos=True, processors=[fails_late], **draft)
        with pytest.raises(ZeroDivisionError):
            shown.extend(stream)
        return (
            [chunk.token for chunk in shown],
            "".join(chunk.text for chunk in shown),
            talk.messages[-1]["content"],
        )

    ids = list(plain.token_ids)
    start = plain.prompt_tokens
    script = ScriptedOptions(script=lambda tokens, gamma: ids[len(tokens) - start :][:gamma], gamma=6)
    want = answered()
    assert (want[0], want[1]) == (ids[:9], want[2])
    assert answered(draft=Scripted(script, engine.config)) == want


def test_numbers_of_numpy_are_reported_as_json(engine):
    """Guards sweeps over `np.arange`: the report of a generation could not be written."""
    numbers = {"seed": np.int64(3), "max_new_tokens": np.int32(4), "temperature": np.float32(0.5)}
    done = engine.generate("hi", draft="ngram", gamma=np.int64(2), **numbers)
    assert json.loads(json.dumps(done.to_dict()))["gamma"] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gamma": -1, "draft": "ngram"}, "gamma is -1"),
        ({"gamma": "4", "draft": "ngram"}, "an integer"),
        ({"gamma": 65, "draft": "ngram"}, "gamma is 65"),
        ({"draft": "early_exit", "exit_layer": 0}, "it must be 1 to 3"),
        ({"draft": "early_exit", "exit_layer": 4}, "it must be 1 to 3"),
        ({"draft": "early_exit", "confidence": 1.5}, "confidence is 1.5"),
        ({"draft": "ngram", "min_ngram": 6}, "min_ngram is 6"),
        ({"draft": "ngram", "exit_layer": 2}, "has no option exit_layer"),
        ({"draft": "magic"}, "must be one of .*early_exit, .*plain, .*suffix"),
        ({"draft": "scripted"}, "script="),
        ({"max_tokens": 5}, "every generation has .*max_new_tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 2.5}, "an integer"),
        ({"temperature": -1}, "temperature is -1"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -2}, "top_k is -2"),
        ({"seed": -1}, "seed is -1"),
        ({"stop": ""}, "non-empty"),
        ({"stop": [""]}, "non-empty"),
        ({"stop": [3]}, "non-empty"),
        ({"stop": 3}, "non-empty"),
        ({"processors": 5}, "processors is"),
        ({"processors": [5]}, "processors"),
        ({"draft": ["ngram"]}, "drafter is"),
        ({"draft": "ngram", "gamma": [4]}, "an integer"),
        ({"draft": "ngram", "gamma": True}, "an integer"),
        ({"draft": "plain", "confidence": 0.5}, "drafts nothing"),
    ],
)
def test_wrong_options_are_one_clear_error(engine, options, words):
    """Guards against options that are ignored or fail half-way: nothing runs, one line says why."""
    with pytest.raises(OptionError, match=words) as caught:
        engine.generate("hi", **options)
    assert "\n" not in str(caught.value)


def test_wrong_options_are_errors_when_loading_too(tiny):
    """Guards the late surprise: an engine that could never generate is not made."""
    with pytest.raises(OptionError, match="exit layer is 9"):
        selfspec.load(tiny, draft="early_exit", exit_layer=9)
    with pytest.raises(OptionError, match="dtype is 'int3'"):
        selfspec.load(tiny, dtype="int3")
    with pytest.raises(OptionError, match="device 'moon'"):
        selfspec.load(tiny, device="moon")
    with pytest.raises(ModelNotFoundError):
        selfspec.load(f"{tiny}/nothing")


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ([], "empty"),
        ([999], "outside this model's vocabulary of 259"),
        ([-1], "outside"),
        ([1] * 4096, "context is 4096, so it may have at most 4095"),
        (None, "either a prompt or messages"),
        ([1.7], "integers"),
        ([True], "integers"),
        (["a"], "integers"),
        (5, "text or a list"),
        (b"abc", "text or a list"),
        ({5: 1}, "text or a list"),
    ],
)
def test_wrong_prompts_are_one_clear_error(engine, prompt, words):
    """Guards prompts that cannot be answered."""
    with pytest.raises(PromptError, match=words):
        engine.generate(prompt)


def test_draft_options_of_the_engine_belong_to_its_drafter(tiny):
    """Guards the merge of options: another drafter for one call does not inherit options it may not have."""
    engine = selfspec.load(tiny, draft="early_exit", exit_layer=3, gamma=2, max_new_tokens=4, ignore_eos=True)
    assert engine.generate("hi").plan == "exit 3/4"
    assert engine.generate("hi", gamma=1).gamma == 1
    done = engine.generate("hi", draft="ngram")
    assert (done.draft, done.gamma, len(done.token_ids)) == ("ngram", 7, 4)


def test_a_drafter_instance_can_be_given(engine):
    """Guards the door for drafters that a name and options cannot describe."""
    drafter = Scripted(ScriptedOptions(script=lambda tokens, gamma: [1] * gamma), engine.config)
    assert engine.generate("hi", draft=drafter, max_new_tokens=5).draft == "scripted"
    with pytest.raises(OptionError, match="already made"):
        engine.generate("hi", draft=drafter, gamma=3)


def test_a_model_object_shares_its_tensors(tiny):
    """Guards load(model object): no copy, and the answer of the checkpoint itself."""
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny)
    engine = selfspec.load(model, tokenizer=tokenizer, draft="early_exit", exit_layer=3)
    assert engine.runtime._embedding.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    want = selfspec.load(tiny, dtype="float64").generate("hi", max_new_tokens=9)
    assert engine.generate("hi", max_new_tokens=9).text == want.text
    bare = selfspec.load(model)
    assert bare.generate([5, 6], max_new_tokens=3).text == ""
    with pytest.raises(PromptError, match="no tokenizer"):
        bare.generate("hi")
