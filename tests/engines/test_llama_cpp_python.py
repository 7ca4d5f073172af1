"""`selfspec.llamacpp.draft` in llama-cpp-python, which has no wheel for every machine: its build may take an hour.

python -m venv llama && llama/bin/pip install llama-cpp-python click filelock gguf packaging platformdirs
llama/bin/pip install safetensors tokenizers
SELFSPEC_LLAMA_PYTHON=$PWD/llama/bin/python pytest -m engines tests/engines/test_llama_cpp_python.py
"""

from __future__ import annotations

import numpy as np
import pytest
from float32_gguf import write_float32
from other_python import ask

import selfspec
from selfspec.export.acceptance import acceptance_along
from selfspec.model import EMBEDDED
from selfspec.model.embedded import find_embedded, unpacked

pytestmark = [pytest.mark.engines, pytest.mark.embedded]
TOKENS, GAMMA = 32, 6
QUESTIONS = [
    "Repeat three times: the quick brown fox jumps over the lazy dog.",
    "Count from one to ten in words.",
    "Write a Python function that adds two numbers, then one that adds three numbers.",
]
EVERYWHERE = {"row_price": 0.0, "gamma": GAMMA}


@pytest.fixture(scope="module")
def engine():
    return selfspec.load(EMBEDDED, threads=1)


@pytest.fixture(scope="module")
def ask_it(tmp_path_factory):
    """Asks llama-cpp-python about the model in float32."""
    folder = tmp_path_factory.mktemp("llama")
    with unpacked(find_embedded(EMBEDDED), folder) as source:
        model = str(write_float32(source, folder / "float32.gguf"))

    def asked(prompts, drafts, **settings):
        settings = {"n_ctx": 512, "verbose": False, **settings}
        given = {"model": model, "prompts": prompts, "tokens": TOKENS, "drafts": drafts, "settings": settings}
        return ask("SELFSPEC_LLAMA_PYTHON", "llama_answers.py", **given)

    return asked


def test_its_texts_are_those_without_a_draft(engine, ask_it, tmp_path):
    """Guards five drafters, calls in turn with one object (a prompt again, a turn of a chat), and what it counts.

    A pass gives a token and those that it accepted; the last one of an answer may have given more than was taken.
    """
    prompts = [engine.encode(question) for question in QUESTIONS]
    prompts += [prompts[1]]
    (first,) = ask_it(prompts[:3], [None])
    turn = [*prompts[1], *first["texts"][1], *engine.encode("Now backwards.")]
    prompts.append(turn)  # right after the answer that it goes on from
    np.save(tmp_path / "notes.npy", np.asarray(first["texts"][0] + first["texts"][1], np.int32))
    drafts = [
        None,
        {"draft": "suffix", **EVERYWHERE},
        {"draft": "ngram", **EVERYWHERE, "adaptive": False},
        {"draft": "suffix>ngram", **EVERYWHERE},
        {"draft": "suffix", **EVERYWHERE, "corpus": str(tmp_path / "notes.npy")},
        {"draft": "suffix", **EVERYWHERE, "predictions": {"2": first["texts"][2], "4": first["texts"][1]}},
        {"draft": "suffix", "row_price": 0.3},
    ]
    plain, *drafted = ask_it(prompts, drafts)
    written = sum(map(len, plain["texts"]))
    assert plain["passes"] == written - len(prompts)
    for draft, found in zip(drafts[1:], drafted, strict=True):
        print(draft["draft"], {k: v for k, v in found.items() if k != "texts"}, "plain", plain["passes"])
        assert found["texts"] == plain["texts"], draft
        saved = plain["passes"] - found["passes"]
        assert 0 < saved <= found["accepted"] + GAMMA * len(prompts)
        assert found["accepted"] <= saved
    once, _, _, noted, predicted, _ = drafted
    assert noted["accepted"] > once["accepted"]
    assert predicted["accepted"] > once["accepted"]


def test_as_many_drafts_hold_there_as_here(engine, ask_it):
    """Along its texts, with the price of a row that it is told."""
    prompts = [engine.encode(question) for question in QUESTIONS]
    plain, found = ask_it(prompts, [None, {"draft": "suffix", **EVERYWHERE}])
    here = selfspec.load(EMBEDDED, threads=1, draft="suffix", gamma=GAMMA)
    here.runtime.costs.price = lambda *_, **__: 0.0
    ours = acceptance_along(here, zip(prompts, plain["texts"], strict=True))
    theirs = found["accepted"] / found["drafted"]
    print(f"llama-cpp-python {found['accepted']}/{found['drafted']} = {theirs:.3f}, here {ours}")
    assert abs(theirs - ours.alpha) < 0.03


def test_texts_longer_than_its_batch(engine, ask_it):
    """With `logits_all` they work; without, it has rows of logits for one batch only, as docs/exports.md says."""
    prompts = [engine.encode("Bees carry pollen from flower to flower. " * 12 + "Summarise.")]
    drafts = [None, {"draft": "suffix", **EVERYWHERE}]
    small = {"n_batch": 64, "n_ubatch": 64}
    assert len(prompts[0]) > 64
    plain, found = ask_it(prompts, drafts, logits_all=True, **small)
    assert found["texts"] == plain["texts"]
    assert found["passes"] < plain["passes"]
    with pytest.raises(AssertionError, match="could not broadcast"):
        ask_it(prompts, drafts[1:], **small)
