"""Tokenizers out of GGUF metadata, against those that the metadata was made of, on texts of all scripts."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise

import pytest
from all_scripts import texts
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model.gguf_pre import STYLES
from selfspec.model.gguf_tokenizer import build_tokenizer
from selfspec.model.reading import Fields
from selfspec.model.textstream import TextStream
from selfspec.model.tokenizer import Tokenizer as Ours

TEXTS = texts()
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def metadata(**values):
    return Fields({f"tokenizer.ggml.{key}": value for key, value in values.items()}, "the metadata")


# -- byte-level BPE ---------------------------------------------------------------------------------------

DIGITS, BYTES = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = CL100K.replace("{1,3}", "")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    """As the tokenizer.json of models with an own pattern have it."""
    own = pre_tokenizers.Split(Regex(pattern), "isolated")
    return [own, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


# what the tokenizer.json of the models have: normalisation to NFC or none, steps, ignore_merges
ORIGINALS = {
    "gpt-2": (False, [BYTES], False),
    "olmo": (True, [BYTES], False),
    "smollm": (False, [DIGITS, BYTES], False),
    "starcoder": (False, [DIGITS, BYTES], False),
    "command-r": (True, [DIGITS, BYTES], False),
    "llama-bpe": (False, split(CL100K), True),
    "dbrx": (False, split(CL100K), False),
    "glm4": (False, split(CL100K), True),
    "qwen2": (True, split(QWEN2), False),
    "tekken": (False, split(TEKKEN), True),
    "gpt-4o": (False, split(O200K), False),
    "falcon": (
        False,
        [
            pre_tokenizers.Punctuation("contiguous"),
            BYTES,
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ],
        False,
    ),
}


@cache
def trained():
    """Vocabulary and merges of a byte-level BPE that has seen texts like these."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split(CL100K))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts(1200, seed=1), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), *SPECIAL]
    return tokens, [tuple(merge) for merge in model["merges"]]


@pytest.mark.parametrize("pre", ORIGINALS)
def test_byte_level(pre):
    """Guards every way of splitting: another one gives other tokens than in training, and no error."""
    tokens, merges = trained()
    composed, steps, ignore_merges = ORIGINALS[pre]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    original = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ignore_merges))
    if composed:
        original.normalizer = normalizers.NFC()
    original.pre_tokenizer = pre_tokenizers.Sequence(steps)
    original.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    found = build_tokenizer(
        metadata(
            model="gpt2",
            pre=pre,
            tokens=tokens,
            merges=[" ".join(merge) for merge in merges],
            token_type=[CONTROL if token in SPECIAL else NORMAL for token in tokens],
            add_bos_token=False,
        )
    )
    ids = [encoding.ids for encoding in found.encode_batch(TEXTS)]
    assert ids == [encoding.ids for encoding in original.encode_batch(TEXTS)]
    for text, own in zip(TEXTS[:60], ids, strict=False):
        if not composed:
            assert found.decode(own, skip_special_tokens=False) == text


def test_every_way_of_splitting_is_one_of_these():
    """Guards the table: a name without a test must be another name for one that has it."""
    tested = {STYLES[pre][:4] for pre in ORIGINALS}
    assert {name for name, style in STYLES.items() if style[:4] not in tested} == {"default"}  # of llama.cpp alone


# -- SentencePiece ----------------------------------------------------------------------------------------


@cache
def pieces():
    """Tokens, scores and kinds as a SentencePiece model of merges has them: characters, their merges, bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=1800, limit_alphabet=500, show_progress=False)
    tokenizer.train_from_iterator(
        [t[:40] for t in texts(1500, seed=2)] + ["the quick brown fox  the   end"] * 40, trainer
    )
    model = json.loads(tokenizer.to_str())["model"]
    head = ["<unk>", "<s>", "</s>", "\n\n", "  ", "   "]
    byte = [f"<0x{value:02X}>" for value in range(256)]
    merged = ["".join(merge) for merge in model["merges"]]
    letters = [token for token in model["vocab"] if len(token) == 1]
    own = [token for token in dict.fromkeys([*merged, *letters]) if token not in {*head, *byte}]
    tokens = [*head, *byte, *own]
    kinds = [UNKNOWN, CONTROL, CONTROL, USER, USER, USER, *[BYTE] * 256, *[NORMAL] * len(own)]
    scores = [0.0] * (len(head) + 256) + [-float(rank) for rank in range(len(own))]
    assert len(set(tokens)) == len(tokens)
    return tokens, scores, kinds


def by_the_book(text, tokens, scores, kinds, *, prefix):
    """SentencePiece's rule, as slowly as it is said: merge the pair with the best score, the leftmost of equals."""
    ids, out = {token: number for number, token in enumerate(tokens)}, []
    own = {token: scores[number] for token, number in ids.items() if kinds[number] == NORMAL}
    whole = sorted((t for t, kind in zip(tokens, kinds, strict=True) if kind in (UNKNOWN, CONTROL, USER)), key=len)
    for part in cut(text, whole):
        if part in whole:
            out.append(ids[part])
            continue
        symbols = list(("▁" if prefix else "") + part.replace(" ", "▁"))
        while pairs := [(-own[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in own]:
            _, at = min(pairs)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        for symbol in symbols:
            known = [ids[symbol]] if symbol in own else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
            out += known
    return out


def cut(text, whole):
    """At tokens that are taken whole: the leftmost, and of these the longest."""
    parts, start, at = [], 0, 0
    while at < len(text):
        found = next((token for token in reversed(whole) if text.startswith(token, at)), None)
        if found is None:
            at += 1
            continue
        parts += [text[start:at], found]
        start = at = at + len(found)
    return [part for part in [*parts, text[start:]] if part]


@pytest.mark.parametrize("prefix", [True, False])
def test_merges_by_score(prefix):
    """Guards Llama 2, Gemma and Phi-3: the merges are not in the file, its scores are all there is."""
    tokens, scores, kinds = pieces()
    found = build_tokenizer(
        metadata(
            model="llama", tokens=tokens, scores=scores, token_type=kinds, unknown_token_id=0, bos_token_id=1,
            eos_token_id=2, add_space_prefix=prefix,
        )
    )  # fmt: skip
    for text in TEXTS[:: 10 if prefix else 1]:
        assert found.encode(text, add_special_tokens=False).ids == by_the_book(
            text, tokens, scores, kinds, prefix=prefix
        )
    assert found.encode("a").ids[0] == 1  # BOS, where the file does not say
    ours = Ours(found)
    for text in TEXTS[:300]:
        ids = ours.encode(text, add_special_tokens=False)
        stream = TextStream(ours)
        assert "".join(map(stream.push, ids)) + stream.finish() == ours.decode(ids)


@pytest.mark.parametrize("extra", [True, False])
def test_unigrams(extra):
    """Guards T5's kind, with and without its clean-up of spaces."""
    original = Tokenizer(models.Unigram())
    steps = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()] if extra else []
    original.normalizer = normalizers.Sequence([*steps, normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.UnigramTrainer(
        vocab_size=2600, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    original.train_from_iterator([text[:30].replace("<", "") for text in texts(300, seed=3)], trainer)
    state = json.loads(original.to_str())["model"]
    tokens, scores = zip(*state["vocab"], strict=True)
    found = build_tokenizer(
        metadata(
            model="t5", tokens=list(tokens), scores=list(scores), unknown_token_id=2, eos_token_id=1,
            remove_extra_whitespaces=extra, token_type=[CONTROL, CONTROL, UNKNOWN, *[NORMAL] * (len(tokens) - 3)],
        )
    )  # fmt: skip
    plain = [encoding.ids for encoding in found.encode_batch(TEXTS, add_special_tokens=False)]
    assert plain == [encoding.ids for encoding in original.encode_batch(TEXTS, add_special_tokens=False)]
    assert found.encode("a").ids[-1] == 1  # EOS, where the file does not say


# -- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind", "parts"),
    [
        ({"model": "bert"}, UnsupportedModelError, ("'bert'", "gpt2", "llama", "t5")),
        ({"model": "gpt2", "pre": "poro-chat"}, UnsupportedModelError, ("poro-chat", "tekken")),
        ({"model": "llama", "scores": [0.0]}, CorruptModelError, ("3 tokens", "scores")),
        ({"model": "llama", "token_type": [1]}, CorruptModelError, ("3 tokens", "types")),
        ({"model": "gpt2", "tokens": ["a", "a", "b"]}, CorruptModelError, ("twice",)),
        ({"model": "gpt2", "merges": ["a c"]}, CorruptModelError, ("do not fit",)),
        ({"model": "t5", "precompiled_charsmap": "x"}, CorruptModelError, ("precompiled_charsmap",)),
    ],
)
def test_refused(values, kind, parts, refused):
    """Guards files whose parts do not fit together, and kinds that nobody here reads."""
    base = {"tokens": ["a", "b", "ab"], "merges": ["a b"], "scores": [0.0, -1.0, -2.0]}
    with refused(kind, *parts):
        build_tokenizer(metadata(**base | values))


def test_texts_come_back():
    """Guards the decoder: bytes of a character are apart, and spaces have another name."""
    tokens, scores, kinds = pieces()
    found = build_tokenizer(
        metadata(model="llama", tokens=tokens, scores=scores, token_type=kinds, add_space_prefix=False)
    )
    for text in TEXTS[:300]:
        assert found.decode(
            found.encode(text, add_special_tokens=False).ids, skip_special_tokens=False
        ) == text.replace("▁", " ")
