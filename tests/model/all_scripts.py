"""Texts of all scripts, the same in every run: what a tokenizer may meet."""

from __future__ import annotations

import random
import unicodedata

RANGES = [
    (0x20, 0x7E), (0xA1, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58A), (0x5B0, 0x5F4),
    (0x600, 0x6FF), (0x700, 0x74F), (0x900, 0x97F), (0x980, 0x9FE), (0xA01, 0xA76), (0xB82, 0xBFA), (0xE01, 0xE5B),
    (0xE81, 0xEDF), (0xF00, 0xFDA), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x139F),
    (0x13A0, 0x13FD), (0x1780, 0x17F9), (0x1820, 0x1878), (0x1E00, 0x1FFE), (0x2010, 0x205F), (0x2070, 0x20BF),
    (0x2100, 0x23FF), (0x2460, 0x27BF), (0x2E80, 0x2FDF), (0x3000, 0x30FF), (0x3105, 0x312F), (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF), (0xA000, 0xA48C), (0xAC00, 0xD7A3), (0xF900, 0xFAD9), (0xFB00, 0xFB4F), (0xFB50, 0xFDFF),
    (0xFE30, 0xFE4F), (0xFF01, 0xFFEE), (0x10000, 0x100FA), (0x10330, 0x1034A), (0x12000, 0x12399),
    (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF),
]  # fmt: skip
SPACES = [
    " ",
    "  ",
    "   ",
    "        ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\n \n",
    " \n",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
]
PIECES = [
    "don't", "I'LL", "we've", "'S", "’s", "Straße", "ÇA", "naïve", "e\u0301", "a\u0308\u0323", "\u0344", "Å", "ﬁ",
    "123", "12345678", "3.14", "１２３", "½", "Ⅳ", "٣٤٥", "१२३", "1,000", "0x1F", "👩\u200d👩\u200d👧", "👍🏽",
    "🇩🇪", "😀😀",
    "def f(x):\n    return x**2  # no\n", "<p class=\"a\">", "{'k': [1, 2]}", "a_b-c/d\\e", "==========", "!?!?...",
    "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<bos>", "<0x0A>", "[INST]", "<|x", "|>", "▁", "▁▁",
    "שָׁלוֹם", "مرحبا بالعالم", "नमस्ते", "สวัสดี", "你好,世界", "こんにちは", "안녕하세요",
    "\ufeff", "\ufffd", "\u202eabc", "\x00", "\x7f",
    "HelloWorld", "XMLHttpRequest", "helloWORLD", "ǅungla", "iPhone15Pro", "ª", "ʰ", "CJK漢字kana",
]  # fmt: skip


def texts(count=2000, seed=0):
    """Texts; lone surrogates and unassigned code points, on which versions of Unicode differ, are left out."""
    rng = random.Random(seed)
    return ["", *(_text(rng) for _ in range(count - 1))]


def _text(rng):
    script, out = rng.choice(RANGES), []
    for _ in range(rng.randint(1, 9)):
        kind = rng.random()
        if kind < 0.45:
            out.append(_word(rng, script if rng.random() < 0.8 else rng.choice(RANGES)))
        elif kind < 0.75:
            out.append(rng.choice(PIECES))
        else:
            out.append("".join(rng.choice(SPACES) for _ in range(rng.randint(1, 3))))
        if rng.random() < 0.4:
            out.append(" ")
    return "".join(out)


def _word(rng, script):
    letters = (chr(rng.randint(*script)) for _ in range(rng.randint(1, 8)))
    return "".join(c for c in letters if unicodedata.category(c) not in ("Cn", "Cs", "Co"))
