"""2,000 different strings of all scripts, and of everything else that tokenizers stumble over."""

from __future__ import annotations

import random
import unicodedata
from functools import cache

COUNT = 2000
BLOCKS = {
    "latin": (0x41, 0x24F), "greek": (0x370, 0x3FF), "cyrillic": (0x400, 0x52F), "armenian": (0x531, 0x58F),
    "hebrew": (0x591, 0x5F4), "arabic": (0x600, 0x6FF), "syriac": (0x700, 0x74F), "thaana": (0x780, 0x7BF),
    "nko": (0x7C0, 0x7FF), "devanagari": (0x900, 0x97F), "bengali": (0x980, 0x9FF), "gurmukhi": (0xA00, 0xA7F),
    "gujarati": (0xA80, 0xAFF), "tamil": (0xB80, 0xBFF), "telugu": (0xC00, 0xC7F), "kannada": (0xC80, 0xCFF),
    "malayalam": (0xD00, 0xD7F), "sinhala": (0xD80, 0xDFF), "thai": (0xE00, 0xE5B), "lao": (0xE80, 0xEDF),
    "tibetan": (0xF00, 0xFDA), "myanmar": (0x1000, 0x109F), "georgian": (0x10A0, 0x10FF), "jamo": (0x1100, 0x11FF),
    "ethiopic": (0x1200, 0x139F), "cherokee": (0x13A0, 0x13FF), "khmer": (0x1780, 0x17F9),
    "mongolian": (0x1800, 0x18AA), "vietnamese": (0x1E00, 0x1EFF), "kana": (0x3041, 0x30FF),
    "han": (0x4E00, 0x9FFF), "hangul": (0xAC00, 0xD7A3), "presentation": (0xFB00, 0xFDFF),
    "fullwidth": (0xFF01, 0xFFEE), "gothic": (0x10330, 0x1034A), "cuneiform": (0x12000, 0x1236E),
    "hieroglyphs": (0x13000, 0x1342E), "mathematical": (0x1D400, 0x1D7FF), "han beyond": (0x20000, 0x20100),
    "symbols": (0x2000, 0x2BFF), "private": (0xE000, 0xE00F),
}  # fmt: skip
DIGITS = "0123456789٠١٢٣٤٥٦٧٨٩०१२३४५६७८९０１２３²³½Ⅷ㉈𝟘𝟙"
MARKS = "\u0301\u0308\u0323\u0327\u0345\u05b4\u064e\u093c\u20dd\ufe0f\u3099"
SPACES = (
    " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n    ", "\u00a0", "\u2003", "\u3000", "\u200b",
    "\u2028", "\v\f", "\x85", "\ufeff",
)  # fmt: skip
EMOJI = (
    "😀", "👩‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "🇪🇹🇯🇵", "1️⃣", "❤️", "🧑🏿‍🚀", "‍", "\ufe0e", "🫠", "👁️‍🗨️",
)  # fmt: skip
CODE = (
    "def f(x):\n    return x[1:] + '12'\n", "if (a != b) { c += 1; }\n", '<div class="a">&amp;</div>',
    "SELECT * FROM t WHERE x='it''s';", "\\frac{1}{2}^{n+1}", "a\\nb\\u00e9", '{"k": [1, 2.5e-3, null]}',
    '#!/bin/sh\n\techo "$1"', "don't I'LL we've", "http://a.b/c?d=e&f=%20", "x\x00y\x07\x1b[0m",
)  # fmt: skip
LOOKALIKES = (
    "<s>", "</s>", "<unk>", "<pad>", "[PAD]", "<bos>", "<|im_start|>", "<|im_end|>", "<|im_end", "|>",
    "<|endoftext|>", "<|extra|>", "<tool>", "</tool>", "<0x41>", "<0xFF>", "▁", "▁▁a", "Ġ", "Ċ", "Ġthe", "##ing",
    "[INST]", "<mask>", "< s >", "<S>", "<|IM_END|>",
)  # fmt: skip
WORDS = (
    "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "naïve", "Straße", "İstanbul", "ﬁne",
    "Ångström", "ǆ", "e\u0301te",
)  # fmt: skip


@cache
def _letters(first: int, last: int) -> str:
    """The assigned characters of a block."""
    found = map(chr, range(first, last + 1))
    return "".join(c for c in found if unicodedata.category(c) not in ("Cn", "Cs"))


def _word(rng: random.Random, block: tuple[int, int]) -> str:
    letters = rng.choices(_letters(*block), k=rng.randint(1, 6))
    return "".join(c + (rng.choice(MARKS) if rng.random() < 0.1 else "") for c in letters)


def _part(rng: random.Random, block: tuple[int, int]) -> str:
    kind = rng.random()
    if kind < 0.45:
        return _word(rng, block)
    choices = (WORDS, SPACES, EMOJI, CODE, LOOKALIKES, ["".join(rng.choices(DIGITS, k=rng.randint(1, 7)))])
    return rng.choice(rng.choice(choices))


def _text(rng: random.Random, block: tuple[int, int]) -> str:
    joint = rng.choice(("", " ", " ", "  ", "\n"))
    text = joint.join(_part(rng, block) for _ in range(rng.randint(1, 8)))
    return rng.choice(("", "", " ", "   ", "\n")) + text + rng.choice(("", "", " ", "  ", "\n"))


@cache
def texts(count: int = COUNT, seed: int = 0) -> tuple[str, ...]:
    """The same on every machine; of 2,000 every block is in at least forty."""
    rng, found = random.Random(seed), dict.fromkeys(["", *SPACES, *EMOJI, *CODE, *LOOKALIKES])
    blocks = list(BLOCKS.values())
    while len(found) < count:
        found[_text(rng, blocks[len(found) % len(blocks)])] = None
    return tuple(found)
