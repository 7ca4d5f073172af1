"""Tokenizers of every kind against ``AutoTokenizer``, on 2,000 strings of all scripts."""

from __future__ import annotations

import unicodedata

import pytest
from all_scripts import BLOCKS, COUNT, texts
from tokenizer_kinds import FOLDERS, backend_of, write_folder
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from selfspec.errors import PromptError, UnsupportedModelError
from selfspec.model import TextStream, Tokenizer, tokenizer_files
from selfspec.model.cache import MANIFEST

OWN_PIPELINE = ("gpt2 with a space", "smollm", "gpt_neox", "llama 2", "llama 2, legacy", "llama 2, no space")
FEW = texts()[::8]


def reference(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def streamed(tokenizer, ids):
    writer = TextStream(tokenizer)
    return "".join([*map(writer.push, ids), writer.finish()])


def differing(ours, theirs, strings):
    """The strings that are encoded or decoded otherwise; some of them without special tokens, too."""
    found = []
    for whole, some in ((True, strings), (False, strings[::8])):
        wanted = theirs(list(some), add_special_tokens=whole)["input_ids"]
        for text, want in zip(some, wanted, strict=True):
            is_same = ours.encode(text, add_special_tokens=whole) == want
            if not is_same or ours.decode(want, whole) != theirs.decode(want, skip_special_tokens=whole):
                found.append(text)
    return found


def test_the_strings_are_of_all_scripts():
    """Guards the data: 2,000 different ones, with letters of every block, and all that is hard."""
    strings = texts()
    assert len(strings) == len(set(strings)) == COUNT
    for first, last in BLOCKS.values():
        assert sum(any(first <= ord(c) <= last for c in text) for text in strings) >= 30
    kinds = {unicodedata.category(c) for text in strings for c in text}
    assert {"Mn", "Mc", "Me", "Nd", "Nl", "No", "Zs", "Zl", "Cf", "Cc", "Co", "So", "Sc", "Lo", "Lm"} <= kinds
    assert sum(text[:1].isspace() for text in strings) > 100
    assert sum(text[-1:].isspace() for text in strings) > 100


@pytest.mark.parametrize("name", FOLDERS)
def test_equals_transformers(name, tmp_path):
    """Guards what every prompt rests on, for folders as transformers 4 wrote them, and as 5 saves them again."""
    folder = write_folder(tmp_path / "4", name)
    theirs = reference(folder)
    assert differing(Tokenizer.from_folder(folder), theirs, texts()) == []
    theirs.save_pretrained(tmp_path / "5")
    if (folder / "config.json").exists():
        (tmp_path / "5" / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert differing(Tokenizer.from_folder(tmp_path / "5"), reference(tmp_path / "5"), FEW) == []


@pytest.mark.parametrize("name", OWN_PIPELINE)
def test_the_pipeline_of_the_class_is_needed(name, tmp_path, monkeypatch):
    """A negative control: with the steps of ``tokenizer.json`` alone the comparison finds strings that differ."""
    folder = write_folder(tmp_path, name)
    monkeypatch.setattr(tokenizer_files, "pipeline_of", lambda *_: None)
    assert differing(Tokenizer.from_folder(folder), reference(folder), FEW)


def test_a_converted_folder_keeps_its_steps(tmp_path):
    """Guards GGUF files: their steps come from their metadata, and a class of transformers has no say in them."""
    folder = write_folder(tmp_path, "smollm")
    (folder / MANIFEST).write_text("{}")
    text = "a  12"
    assert Tokenizer.from_folder(folder).encode(text) == backend_of("gpt2_digits").encode(text).ids
    assert reference(folder).encode(text) != backend_of("gpt2_digits").encode(text).ids


@pytest.mark.parametrize(
    "name", ["gpt2", "llama3", "qwen2", "llama2", "mistral", "gemma", "unigram", "unigram_bytes"]
)
def test_streams_equal_the_whole(name):
    """Guards streaming: the pieces together are what transformers decodes, and no piece has half a character."""
    theirs, ours = backend_of(name), Tokenizer(backend_of(name))
    for text in texts()[::4]:
        ids = ours.encode(text)
        writer = TextStream(ours)
        pieces = [*map(writer.push, ids), writer.finish()]
        assert "".join(pieces) == theirs.decode(ids)
        assert sum(piece.count("\ufffd") for piece in pieces) == theirs.decode(ids).count("\ufffd")


def test_word_pieces_are_refused(refused):
    """No decoder has them; streamed without their rules, words would run together."""
    with refused(UnsupportedModelError, "WordPiece"):
        TextStream(Tokenizer(backend_of("word_piece")))


# -- BOS --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bos"),
    [("llama 3", 1), ("llama 3, no bos asked", 1), ("gemma", 1), ("opt", 0), ("qwen 2", 0), ("gpt_neox", 0)],
)
@pytest.mark.parametrize("writes", [True, False])
def test_one_bos_at_most(name, bos, writes, tmp_path):
    """Guards prompts that begin as in training: with the BOS of tokenizer or template, never with two."""
    folder = write_folder(tmp_path, name)
    (folder / "chat_template.jinja").write_text(
        ("{{ bos_token }}" if writes else "") + "{{ messages[0].content }}", encoding="utf-8"
    )
    ours, theirs = Tokenizer.from_folder(folder), reference(folder)
    messages = [{"role": "user", "content": "the fox"}]
    body = ours.encode("the fox", add_special_tokens=False)
    assert ours.encode("the fox") == theirs.encode("the fox")
    assert len(ours.encode("the fox")) - len(body) == bos
    want = theirs.apply_chat_template(messages, return_dict=False)
    assert ours.encode_chat(messages, add_generation_prompt=False) == want
    assert len(want) - len(body) == (1 if writes and theirs.bos_token else 0)


# -- padded vocabularies ----------------------------------------------------------------------------------

TOKENS, ROWS = 151_936, 152_064  # of Qwen 2.5, whose embeddings are padded


@pytest.fixture(scope="module")
def large():
    alphabet = {chr(0x100 + i): i for i in range(256)}
    pieces = {f"t{i}": i for i in range(256, TOKENS - 1)}
    backend = Backend(models.BPE(alphabet | pieces, []))
    backend.add_tokens([AddedToken("<|im_end|>", special=True)])
    return backend


def test_tokens_beyond_the_tokenizer_are_no_text(large):
    """Guards padded embeddings: a model may choose a row without a token; as in transformers, it has no text."""
    from transformers import PreTrainedTokenizerFast

    ours = Tokenizer(large, limit=ROWS)
    assert ours.vocab_size == TOKENS
    theirs = PreTrainedTokenizerFast(tokenizer_object=large)
    ids = [300, TOKENS, 301, ROWS - 1, TOKENS - 1, 302]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == streamed(ours, ids)
    assert ours.decode(ids, False) == theirs.decode(ids)
    assert ours.decode([TOKENS, ROWS - 1]) == streamed(ours, [TOKENS, ROWS - 1]) == ""
    assert ours.piece(TOKENS) is None


def test_a_token_without_an_embedding_is_one_line(large, refused):
    """Guards the opposite: more tokens than embeddings crashed the pass that read one."""
    ours = Tokenizer(large, limit=TOKENS - 1)
    assert ours.encode("\u0100") == [0]
    with refused(PromptError, "<|im_end|>", str(TOKENS - 1), "embeddings"):
        ours.encode("\u0100<|im_end|>")
