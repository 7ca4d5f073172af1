"""``model.generate(custom_generate=selfspec.hf.generate)``: the words of plain ``generate``."""

from __future__ import annotations

import copy
import sys
import threading

import numpy as np
import pytest
import torch
import transformers as hf
from hf_model import DRAFT
from transformers import MaxTimeCriteria, StoppingCriteriaList, StopStringCriteria

import selfspec
from selfspec.errors import OptionError, PromptError, RuntimeMissingError, UnsupportedModelError
from selfspec.measure.laws import p_value

OURS = {"custom_generate": selfspec.hf.generate, **DRAFT}
GREEDY = {"max_new_tokens": 9, "do_sample": False}


def same(model, inputs, **asked):
    """The output with drafts, which must be that of plain generate."""
    plain = model.generate(**inputs, **GREEDY | asked)
    drafted = model.generate(**inputs, **GREEDY | asked, **OURS)
    assert torch.equal(drafted, plain)
    return plain


def test_batches_of_every_size_say_what_generate_says(model, batch):
    """Rows end at different lengths, so the ragged rounds and the padding are compared too."""
    for size in (1, 2, 3, 5, 8):
        same(model, batch(size))
    plain = same(model, batch(3), eos_token_id=[257, int(same(model, batch(3))[1, -5])])
    assert (plain[1] == model.generation_config.pad_token_id).sum() > 12, "one of them ends early"


def last_token_but(scores, token):
    scores[:, token] = -torch.inf
    return scores


THIRDS = {"eos_token_id": list(range(0, 259, 3))}
PROCESSED = [  # what is asked, and what beside it changes the answer by itself
    ({"repetition_penalty": 1.8}, {}),
    ({"no_repeat_ngram_size": 1}, {}),
    ({"bad_words_ids": [[223], [118, 8], [258]]}, {}),
    ({"min_new_tokens": 7}, THIRDS),
    ({"min_length": 23}, THIRDS),
    ({"forced_eos_token_id": 40}, {}),
    ({"suppress_tokens": list(range(0, 259, 2))}, {}),
    ({"begin_suppress_tokens": list(range(0, 259, 2))}, {}),
    ({"sequence_bias": [[[7], 9.0], [[7, 8], 9.0]]}, {}),
    ({"exponential_decay_length_penalty": (3, 1.9)}, THIRDS),
    ({"prefix_allowed_tokens_fn": lambda row, ids: [10 + row, 90 + row, 200 + len(ids)]}, {}),
    ({"encoder_repetition_penalty": 30.0}, {}),
    ({"encoder_no_repeat_ngram_size": 1}, {"sequence_bias": [[[75], 30.0]]}),
    ({"watermarking_config": hf.WatermarkingConfig(bias=6.0)}, {}),
    ({"logits_processor": [lambda ids, scores: scores.masked_fill(torch.arange(259) < ids[:, -1:], -9.0)]}, {}),
]


@pytest.mark.parametrize(("asked", "beside"), PROCESSED, ids=[next(iter(asked)) for asked, _ in PROCESSED])
def test_processors_are_those_of_generate(model, batch, asked, beside):
    """Every one changes the answer here, for rows with and without padding; guards those that count pads."""
    plain = same(model, batch(3), **asked, **beside)
    assert not torch.equal(plain, model.generate(**batch(3), **GREEDY | beside))


class EndsOnEven(hf.StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return (input_ids[:, -1] % 2 == 0) & (input_ids.shape[1] > 22)


def test_criteria_end_each_text_where_generate_ends_it(model, batch, tokenizer):
    text = tokenizer.decode(same(model, batch(3))[0, 20:22])
    for criterion in (
        EndsOnEven(),
        StopStringCriteria(tokenizer, [text]),
        MaxTimeCriteria(0.0),
        hf.EosTokenCriteria(list(range(0, 259, 4))),
        hf.MaxLengthCriteria(21),
    ):
        plain = same(model, batch(3), stopping_criteria=StoppingCriteriaList([criterion]))
        assert not torch.equal(plain, same(model, batch(3))), criterion
    alone = [lambda ids, scores: bool(ids[0, -1] < 100 and ids.shape[1] > 20)]  # for one text, a bool will do
    assert same(model, batch(1), stopping_criteria=alone).shape[1] < same(model, batch(1)).shape[1]


def test_a_processor_and_a_criterion_see_exactly_the_calls_of_plain_decoding(model, batch):
    """Guards users' own state: a call for a draft row, or a second one for the same row, would move it on."""

    def calls(**how):
        seen = []

        def processor(ids, scores):
            seen.append(("processor", ids.tolist()))
            scores[:, len(seen) % 259] += 30.0  # depends on how often it was called
            return scores

        def criterion(ids, scores):
            seen.append((ids.tolist(), len(scores)))
            return torch.zeros(1, dtype=torch.bool)

        config = {"return_dict_in_generate": True, "output_scores": True}
        rules = {"logits_processor": [processor], "stopping_criteria": [criterion]}
        return model.generate(**batch(1), **GREEDY, **rules, **config, **how).sequences.tolist(), seen

    assert calls() == calls(**OURS)


def test_scores_logits_and_statistics_come_with_the_tokens(model, batch):
    asked = GREEDY | {"repetition_penalty": 1.3, "return_dict_in_generate": True}
    asked |= {"output_scores": True, "output_logits": True}
    plain, drafted = (model.generate(**batch(3), **asked, **how) for how in ({}, OURS))
    new = plain.sequences[:, -len(plain.scores) :]
    assert torch.equal(plain.sequences, drafted.sequences)
    assert len(drafted.scores) == len(drafted.logits) == len(plain.scores)
    for t, (ours, theirs) in enumerate(
        zip(drafted.scores + drafted.logits, plain.scores + plain.logits, strict=True)
    ):
        live = (new[:, : t % len(plain.scores)] != 257).all(dim=-1)
        assert torch.allclose(ours[live], theirs[live], atol=1e-5)
    told = drafted.speculation
    assert 0 < told.accepted < told.drafted
    assert told.acceptance_rate == told.accepted / told.drafted
    assert sum(row.stats.tokens for row in told.rows) == int((new != 258).sum())
    assert told.to_dict()["mean_accepted_length"] > 1
    assert isinstance(drafted, hf.generation.GenerateDecoderOnlyOutput)


def test_sampled_texts_have_the_law_of_generate(model, batch):
    """Two tokens of two each, against the laws of transformers' own scores. False alarm: 1 in 1000."""
    asked = {"max_new_tokens": 2, "do_sample": True, "temperature": 1.7, "top_k": 2, "repetition_penalty": 1.2}
    inputs, count = batch(1), 200
    torch.manual_seed(3)
    out = model.generate(**inputs, **asked, num_return_sequences=count, **OURS)
    pairs = [tuple(pair) for pair in out[:, -2:].tolist()]
    law = {}
    for first in {pair[0] for pair in pairs}:
        forced = [lambda ids, scores, t=first: scores if ids.shape[1] > 17 else last_but_one(scores, t)]
        told = {"return_dict_in_generate": True, "output_scores": True}
        free = model.generate(**inputs, **asked, **told).scores[0].double().softmax(-1)[0]
        after = model.generate(**inputs, **asked, **told, logits_processor=forced).scores[1].double().softmax(-1)[0]
        law |= {(first, int(t)): float(free[first] * after[t]) for t in after.nonzero()}
    assert abs(sum(law.values()) - 1) < 1e-6
    assert set(pairs) <= set(law)
    counts = np.array([[float(pairs.count(pair)) for pair in law]])
    assert p_value(counts, np.array([list(law.values())])) > 1e-3
    torch.manual_seed(3)
    assert torch.equal(out[:1], model.generate(**inputs, **asked, **OURS))


def last_but_one(scores, token):
    out = torch.full_like(scores, -torch.inf)
    out[:, token] = 0.0
    return out


class Told:
    def __init__(self):
        self.values = []

    def put(self, value):
        self.values.append(value.tolist())

    def end(self):
        self.values.append("end")


def test_streamers_the_folder_and_pipelines(model, batch, tokenizer):
    """Guards what transformers drops for a callable: streamers, and the tokenizer of stop strings."""
    folder = {"custom_generate": selfspec.hf.FOLDER, "trust_remote_code": True, **DRAFT}
    told = [Told() for _ in range(3)]
    for streamer, how in zip(told, ({}, OURS, folder), strict=True):
        model.generate(**batch(3), **GREEDY, streamer=streamer, **how)
    assert told[0].values == told[1].values == told[2].values
    assert len(told[0].values) == 11

    stop = {"stop_strings": tokenizer.decode(same(model, batch(1))[0, 20:22]), "tokenizer": tokenizer}
    plain, drafted = (model.generate(**batch(1), **GREEDY, **stop, **how) for how in ({}, folder))
    assert torch.equal(plain, drafted)
    assert plain.shape[1] < 26
    with pytest.raises(OptionError, match="give tokenizer="):
        model.generate(**batch(1), **GREEDY, stop_strings="x", **folder)

    writer = hf.pipeline("text-generation", model=model, tokenizer=tokenizer)
    assert writer("hello", **GREEDY, **OURS) == writer("hello", **GREEDY)


def test_the_model_is_left_as_it_is_and_threads_do_not_meet(model, batch):
    """Guards the built-in early exit's ways: it lowers num_hidden_layers of the model while it runs."""
    expected = {layer: same(model, batch(2)) for layer in (1, 2, 3)}
    before = ({n: (p.data_ptr(), p._version) for n, p in model.state_dict().items()}, model.config.to_json_string())
    names = sorted(vars(model))
    found = {}

    def run(layer):
        found[layer] = model.generate(**batch(2), **GREEDY, **OURS | {"exit_layer": layer})

    threads = [threading.Thread(target=run, args=(layer,)) for layer in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[layer], expected[layer]) for layer in expected)
    after = ({n: (p.data_ptr(), p._version) for n, p in model.state_dict().items()}, model.config.to_json_string())
    assert after == before
    assert sorted(vars(model)) == names


def test_changed_weights_are_seen(model, batch):
    """Guards the engine that is kept beside a model: it must not answer for tensors that have gone."""
    own = copy.deepcopy(model)
    first = same(own, batch(1))
    own.lm_head.weight = torch.nn.Parameter(own.lm_head.weight.flip(0))
    assert not torch.equal(same(own, batch(1)), first)


class Counting(hf.LogitsProcessor):
    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores


class Runs(Counting):
    def __init__(self, model):
        self.model = model


REFUSED = [
    ({"num_beams": 2}, "num_beams=2, which asks for beam search"),
    ({"assistant_model": object()}, "assistant_model"),
    ({"prompt_lookup_num_tokens": 3}, "prompt look-up"),
    ({"assistant_early_exit": 2}, "draft='early_exit'"),
    ({"penalty_alpha": 0.6}, "contrastive"),
    ({"dola_layers": "low"}, "DoLa"),
    ({"constraints": [1]}, "constrained beam search"),
    ({"guidance_scale": 1.5}, "guidance"),
    ({"output_attentions": True}, "attention weights"),
    ({"output_hidden_states": True}, "hidden states"),
    ({"use_cache": False}, "without a cache"),
    ({"cache": hf.DynamicCache()}, "a cache of the caller"),
    ({"cache_implementation": "offloaded"}, "a cache of another kind"),
    ({"synced_gpus": True}, "synced_gpus"),
    ({"position_ids": torch.arange(17)[None] + 3}, "other positions"),
    ({"attention_mask": torch.tensor([[1] * 16 + [0]])}, "pad on the left"),
    ({"max_new_tokens": 5000}, "this model's context is 4096"),
    ({"gamma": 65}, "gamma is 65"),
    ({"draft": "typical"}, "it must be one of"),
    ({"logits_processor": [hf.ClassifierFreeGuidanceLogitsProcessor(2.0)]}, "a batch of pairs"),
    ({"logits_processor": [lambda ids, scores: scores[0]]}, "needs the whole batch at once"),
    ({"logits_processor": [Counting()], "num_return_sequences": 2}, "Counting keeps state"),
    ({"stopping_criteria": [lambda ids, scores: True], "num_return_sequences": 2}, "a tensor with one value"),
    ({"stopping_criteria": [EndsOnEven()], "num_return_sequences": 2, "eos_token_id": None}, "no eos_token_id"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("asked", "says"), REFUSED, ids=[says[:20] for _, says in REFUSED])
def test_what_has_no_place_is_refused_by_name(model, batch, asked, says):
    if "num_return_sequences" in asked:
        asked = {"do_sample": True, **asked}
    if "eos_token_id" in asked:
        model = copy.copy(model)
        model.generation_config = copy.deepcopy(model.generation_config)
        model.generation_config.eos_token_id = None
    with pytest.raises((OptionError, PromptError), match=says) as told:
        model.generate(**dict(batch(1)) | GREEDY | OURS | asked)
    assert "\n" not in str(told.value)


def test_processors_that_run_a_model_are_refused(model, batch):
    with pytest.raises(OptionError, match="Runs needs to run a model of its own"):
        model.generate(**batch(1), **GREEDY, **OURS, logits_processor=[Runs(model)])


def test_models_that_cannot_be_shared_are_refused(model, batch):
    """Spread over devices, or with weights that are no matrices of numbers."""
    spread, quantised = copy.deepcopy(model), copy.deepcopy(model)
    spread.model.layers[2].to("meta")
    with pytest.raises(UnsupportedModelError, match="spread over cpu and meta"):
        selfspec.load(spread)
    linear = quantised.model.layers[1].mlp.up_proj
    linear.weight = torch.nn.Parameter(linear.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedModelError, match=r"mlp\.up_proj of LlamaForCausalLM is a Linear"):
        quantised.generate(**batch(1), **GREEDY, **OURS)


def test_without_transformers_the_install_line_is_given(monkeypatch):
    """And `import selfspec` alone imports none of them."""
    for name in [name for name in sys.modules if name.startswith("selfspec.hf.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(RuntimeMissingError, match=r"pip install 'selfspec\[hf\]'"):
        selfspec.hf.generate  # noqa: B018


@pytest.mark.embedded
@pytest.mark.slow
def test_the_embedded_model_in_float32():
    """Batches of 1 to 8 left-padded prompts; a text may leave plain generate's at near-ties only."""
    from selfspec.measure.nearties import NearTies, Place
    from selfspec.model import EMBEDDED, find_checkpoint
    from selfspec.runtime.torch import TorchRuntime

    folder = find_checkpoint(EMBEDDED).folder
    model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder, padding_side="left")
    ties = NearTies(TorchRuntime.of(model))
    words = (
        "the sea",
        "how to bake bread, in five steps",
        "three primes",
        "a cat",
        "rain and wind",
        "Rome",
        "x",
        "ink",
    )
    for size in (1, 3, 8):
        turns = [[{"role": "user", "content": f"Write two lines about {word}."}] for word in words[:size]]
        asked = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt", "padding": True}
        inputs = tokenizer.apply_chat_template(turns, **asked)
        options = {"max_new_tokens": 40, "do_sample": False}
        plain = model.generate(**inputs, **options)
        ours = {"custom_generate": selfspec.hf.generate, "draft": "early_exit", "exit_layer": 26, "gamma": 2}
        drafted = model.generate(**inputs, **options, **ours)
        start = inputs["input_ids"].shape[1]
        for row, mask in enumerate(inputs["attention_mask"].bool()):
            texts = [_until_end(out[row, start:].tolist(), model) for out in (drafted, plain)]
            ties.compare(inputs["input_ids"][row][mask].tolist(), *texts, Place(row, f"batch of {size}", 3))
    print(f"{ties.texts} comparisons, {ties.near_ties} near-ties, {ties.bugs} bugs")
    assert ties.passed, ties.divergences


def _until_end(tokens, model):
    ends = model.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else ends
    return tuple(tokens[: next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))])
