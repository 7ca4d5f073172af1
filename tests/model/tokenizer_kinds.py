"""Tokenizers of every kind that decoders have, trained on the spot, and their folders."""

from __future__ import annotations

import json
from functools import cache

from all_scripts import CODE, EMOJI, WORDS, texts
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SIZE = 700
SCRIPTS = texts()[::5]


WORDY = [f"{word} the {code}" for word in WORDS for code in (*CODE, *EMOJI)]  # often enough to be merged


def _trained(model, trainer, pre_tokenizer, normalizer=None, scripts=SCRIPTS):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator([*scripts, *WORDY], trainer)
    return tokenizer


def _bpe(special, **options):
    return trainers.BpeTrainer(vocab_size=SIZE, special_tokens=special, show_progress=False, **options)


def _without_bytes(tokenizer):
    """Byte pieces are ordinary tokens: training keeps them only as special ones."""
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in BYTES]
    return Tokenizer.from_str(json.dumps(state))


def _byte_level(special, *, normalizer=None, pre=None, **options):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pre = pre or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = _trained(models.BPE(**options), _bpe(special, initial_alphabet=alphabet), pre, normalizer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split(regex=SPLIT):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(regex), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def gpt2():
    return _byte_level(["<|endoftext|>"])


def gpt2_digits():
    digits = pre_tokenizers.Digits(individual_digits=True)
    pre = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], pre=pre)


def llama3():
    tokenizer = _byte_level(["<|begin|>", "<|im_end|>", "<|endoftext|>"], pre=_split(), ignore_merges=True)
    bos = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), bos])
    return tokenizer


def qwen2():
    pre = _split(SPLIT.replace("{1,3}", ""))
    return _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizer=normalizers.NFC(), pre=pre)


def _sentencepiece(special):
    pre = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer = _trained(
        models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"),
        _bpe([*special, *BYTES], limit_alphabet=200),
        pre,
    )
    tokenizer = _without_bytes(tokenizer)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _begins(tokenizer, bos):
    number = tokenizer.token_to_id(bos)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, number)])
    return tokenizer


def llama2():
    """As converted for transformers 4: the first space is the normalizer's."""
    tokenizer = _sentencepiece(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = None
    return _begins(tokenizer, "<s>")


def mistral():
    """The first space is the pre-tokenizer's, and only at the start of the text."""
    tokenizer = _sentencepiece(["<unk>", "<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return _begins(tokenizer, "<s>")


def gemma():
    tokenizer = _sentencepiece(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    return _begins(tokenizer, "<bos>")


def _unigram(special, byte_fallback):
    trainer = trainers.UnigramTrainer(
        vocab_size=SIZE, special_tokens=special, unk_token="<unk>", show_progress=False, max_piece_length=8
    )
    pre = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer = _trained(models.Unigram(), trainer, pre, normalizers.NFKC(), scripts=())
    state = json.loads(tokenizer.to_str())
    if byte_fallback:
        state["model"]["byte_fallback"] = True
        state["model"]["vocab"] += [[piece, -20.0] for piece in BYTES]
    return Tokenizer.from_str(json.dumps(state))


def unigram():
    tokenizer = _unigram(["<unk>", "<s>", "</s>"], False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    ends = [("</s>", tokenizer.token_to_id("</s>"))]
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=ends)
    return tokenizer


def unigram_bytes():
    tokenizer = _unigram(["<unk>", "<s>", "</s>"], True)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return _begins(tokenizer, "<s>")


def word_piece():
    trainer = trainers.WordPieceTrainer(
        vocab_size=SIZE, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer = _trained(models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizers.BertPreTokenizer())
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


@cache
def kind(name):
    """The tokenizer of a kind, as ``tokenizer.json`` has it."""
    return globals()[name]().to_str()


def backend_of(name):
    return Tokenizer.from_str(kind(name))


# -- folders -----------------------------------------------------------------------------------------------


def _flags(content, special=True, **changes):
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": special}
    return {"content": content, **flags, **changes}


SP = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
IM = {"eos_token": "<|im_end|>", "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>"}
# name: kind, class, model type, tokenizer_config.json, other files
FOLDERS = {
    "gpt2": ("gpt2", "GPT2Tokenizer", "gpt2", {"eos_token": "<|endoftext|>", "add_prefix_space": False}, {}),
    "gpt2 with a space": ("gpt2", "GPT2TokenizerFast", "gpt2", {"add_prefix_space": True}, {}),
    "smollm": ("gpt2_digits", "GPT2Tokenizer", "llama", IM, {}),
    "generic with digits": ("gpt2_digits", "PreTrainedTokenizerFast", "llama", IM, {}),
    "opt": ("gpt2", "GPT2Tokenizer", "opt", {"add_bos_token": True, "bos_token": "<|endoftext|>"}, {}),
    "gpt_neox": ("gpt2", "GPTNeoXTokenizerFast", "gpt_neox", {"eos_token": "<|endoftext|>"}, {}),
    "llama 3": (
        "llama3",
        "PreTrainedTokenizerFast",
        "llama",
        {"bos_token": "<|begin|>", "eos_token": "<|im_end|>", "clean_up_tokenization_spaces": True},
        {"special_tokens_map.json": {"bos_token": _flags("<|begin|>"), "eos_token": "<|im_end|>"}},
    ),
    "llama 3, declared as llama": ("llama3", "LlamaTokenizerFast", "llama", {"bos_token": "<|begin|>"}, {}),
    "llama 3, no bos asked": (
        "llama3", "TokenizersBackend", "llama", {"bos_token": "<|begin|>", "add_bos_token": False}, {},
    ),
    "qwen 2": (
        "qwen2",
        "Qwen2Tokenizer",
        "qwen2",
        IM
        | {
            "bos_token": None,
            "add_bos_token": False,
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "added_tokens_decoder": {
                "0": _flags("<|endoftext|>"),
                "1": _flags("<|im_start|>"),
                "2": _flags("<|im_end|>"),
                "700": _flags("<tool>", False),
                "701": _flags("</tool>", False, normalized=True),
            },
        },
        {"added_tokens.json": {"<tool>": 700, "</tool>": 701}},
    ),
    "qwen 3 of another class": ("qwen2", "PreTrainedTokenizerFast", "qwen3", IM, {}),
    "llama 2": ("llama2", "LlamaTokenizer", "llama", SP | {"add_bos_token": True, "legacy": False}, {}),
    "llama 2, legacy": ("llama2", "LlamaTokenizerFast", "llama", SP | {"legacy": True}, {}),
    "llama 2, unsaid": ("llama2", "LlamaTokenizerFast", None, SP | {"add_eos_token": True}, {}),
    "llama 2, no space": ("llama2", "LlamaTokenizer", "llama", SP | {"add_prefix_space": False}, {}),
    "mistral": ("mistral", "LlamaTokenizer", "mistral", SP | {"add_bos_token": True, "legacy": True}, {}),
    "mistral, old": ("llama2", "LlamaTokenizer", "mistral", SP | {"add_bos_token": False}, {}),
    "phi 3": (
        "llama2",
        "LlamaTokenizer",
        "phi3",
        SP
        | {
            "added_tokens_decoder": {
                "0": _flags("<unk>"),
                "1": _flags("<s>"),
                "2": _flags("</s>", rstrip=True),
                "700": _flags("<|im_start|>", rstrip=True),
                "701": _flags("<|im_end|>", rstrip=True),
            }
        },
        {},
    ),
    "gemma": (
        "gemma",
        "GemmaTokenizer",
        "gemma2",
        {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "add_bos_token": True},
        {"special_tokens_map.json": {"bos_token": _flags("<bos>"), "eos_token": _flags("<eos>")}},
    ),
    "unigram": ("unigram", "PreTrainedTokenizerFast", None, SP, {}),
    "unigram, bytes": (
        "unigram_bytes", "PreTrainedTokenizerFast", None, SP | {"extra_special_tokens": ["<|extra|>"]}, {},
    ),
    "added later": (
        "gpt2",
        "PreTrainedTokenizerFast",
        "llama",
        {"pad_token": "[PAD]", "extra_special_tokens": {"tool_token": "<tool>"}, "other_token": "<|extra|>"},
        {"special_tokens_map.json": {"mask_token": {**_flags("<mask>"), "lstrip": True}}},
    ),
    "added by number": (
        "gpt2",
        "PreTrainedTokenizerFast",
        "llama",
        {"eos_token": "<|im_end|>"},
        {
            "added_tokens.json": {"<|im_start|>": 701, "<|im_end|>": 700},
            "special_tokens_map.json": {"additional_special_tokens": ["<|im_start|>"]},
        },
    ),
    "split specials": ("llama3", "PreTrainedTokenizerFast", None, {"split_special_tokens": True}, {}),
    "no files": ("llama3", None, None, None, {}),
}  # fmt: skip


def write_folder(folder, name):
    """A folder as a checkpoint of transformers 4 has it."""
    kind_, class_, model_type, settings, files = FOLDERS[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(kind(kind_), encoding="utf-8")
    if settings is not None:
        files = {**files, "tokenizer_config.json": {"tokenizer_class": class_, **settings}}
    if model_type is not None:
        files = {**files, "config.json": {"model_type": model_type, "transformers_version": "4.45.0"}}
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return folder
