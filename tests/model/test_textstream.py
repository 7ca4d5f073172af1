import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import byte_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from selfspec.errors import OptionError, UnsupportedModelError
from selfspec.model import TextStream, Tokenizer

BYTES = Tokenizer(byte_tokenizer())
WORDS = [
    "▁",
    "▁a",
    "▁▁",
    "ab",
    "▁the",
    "<0xZZ>",
    "<0x+1>",
    "<0x 1>",
    "<0x-0>",
    "é",
    "x",
    "<s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
]
SENTENCEPIECE = [
    decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
]  # fmt: skip


def words(decoder):
    backend = Backend(models.BPE({piece: number for number, piece in enumerate(WORDS)}, [], byte_fallback=True))
    backend.add_special_tokens(["<s>"])
    if decoder is not None:
        backend.decoder = decoder
    return Tokenizer(backend)


TOKENIZERS = {
    "bytes": BYTES,
    "bytes in a sequence": words(decoders.Sequence([decoders.ByteLevel()])),
    "llama 2": words(decoders.Sequence(SENTENCEPIECE)),
    "gemma": words(decoders.Sequence(SENTENCEPIECE[:3])),
    "metaspace": words(decoders.Metaspace()),
    "metaspace never": words(decoders.Metaspace(prepend_scheme="never")),
    "none": words(None),
}


def cut(text, stops):
    """The definition, letter by letter."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], True
    return text, False


def stream(tokenizer, ids, stops=()):
    writer, parts = TextStream(tokenizer, stops), []
    for token in ids:
        parts.append(writer.push(token))
        assert writer.text == "".join(parts)
    parts.append(writer.finish())
    assert writer.text == "".join(parts)
    return parts, writer


TEXTS = st.text(st.sampled_from("ab the\n\té😀👩‍👩‍👧你\ufffd"), max_size=30)
TOKENS = st.one_of(
    st.lists(st.integers(0, BYTES.vocab_size - 1), max_size=40),  # mostly invalid UTF-8
    TEXTS.map(BYTES.encode),
    st.tuples(TEXTS, st.lists(st.integers(0, 265), max_size=4), TEXTS).map(
        lambda parts: [*BYTES.encode(parts[0]), *parts[1], *BYTES.encode(parts[2])]
    ),
)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_equals_decode(name, data):
    """Streams that decode token by token broke emoji, dropped invalid bytes, or lost the leading space."""
    tokenizer = TOKENIZERS[name]
    ids = data.draw(TOKENS if name == "bytes" else st.lists(st.integers(0, len(WORDS) + 2), max_size=30))
    parts, writer = stream(tokenizer, ids)
    assert "".join(parts) == tokenizer.decode(ids)
    assert not writer.is_stopped


@settings(max_examples=400, deadline=None)
@given(
    ids=TOKENS,
    stops=st.lists(st.text("ab the\né😀\ufffd", min_size=1, max_size=4), max_size=3),
    data=st.data(),
)
def test_stops_are_a_function_of_the_text(ids, stops, data):
    """A stop string across tokens was missed, its beginning was shown, or a burst cut elsewhere."""
    whole = BYTES.decode(ids)
    if whole:  # a stop that is there, or one that the text only begins
        start = data.draw(st.integers(0, len(whole) - 1))
        piece = whole[start : start + data.draw(st.integers(1, 6))]
        stops = [*stops, piece + data.draw(st.sampled_from(["", "!"]))]
    parts, writer = stream(BYTES, ids, stops)
    expected, is_stopped = cut(whole, stops)
    assert "".join(parts) == expected
    assert writer.is_stopped == is_stopped


@settings(max_examples=200, deadline=None)
@given(ids=TOKENS, stops=st.lists(st.text("ab th", min_size=1, max_size=4), max_size=3))
def test_what_is_shown_stays(ids, stops):
    """Text was shown and then taken back; or held back long after it was final."""
    writer, longest = TextStream(BYTES, stops), max((len(stop) for stop in stops), default=1)
    final, _ = cut(BYTES.decode(ids), stops)
    for count, token in enumerate(ids, 1):
        writer.push(token)
        assert final.startswith(writer.text)
        known, _ = cut(BYTES.decode(ids[:count]), stops)
        assert len(writer.text) > len(known) - longest - 3  # an incomplete code point is up to 3 bytes


def test_no_partial_character_and_no_beginning_of_a_stop():
    """The replacement character flashed up in terminals before each emoji."""
    parts, _ = stream(BYTES, BYTES.encode("é😀a"))
    assert "\ufffd" not in "".join(parts)
    parts, writer = stream(BYTES, BYTES.encode("x STO STOP y"), ["STOP"])
    assert "".join(parts) == "x STO "
    assert writer.is_stopped
    assert writer.push(5) == ""
    assert writer.finish() == ""


def test_the_first_complete_stop_wins():
    """The order in which stop strings were given decided where a text was cut."""
    for stops in (["abcd", "bc"], ["bc", "abcd"]):
        assert "".join(stream(BYTES, BYTES.encode("xabcd"), stops)[0]) == "xa"
    for stops in (["bc", "abc"], ["abc", "bc"]):
        assert "".join(stream(BYTES, BYTES.encode("xabcd"), stops)[0]) == "x"


def test_an_incomplete_end_is_flushed_and_can_be_a_stop():
    """Half a character at the length limit vanished."""
    ids = BYTES.encode("a😀")[:-1]
    parts, _ = stream(BYTES, ids)
    assert (parts[0], parts[-1]) == ("a", "\ufffd")
    parts, writer = stream(BYTES, ids, ["\ufffd"])
    assert "".join(parts) == "a"
    assert writer.is_stopped


def test_the_beginning_of_a_stop_at_the_end_is_flushed():
    """A text that ended in the beginning of a stop string lost it."""
    parts, writer = stream(BYTES, BYTES.encode("x STO"), ["STOP"])
    assert "".join(parts) == "x STO"
    assert not writer.is_stopped


def test_ordinary_text_is_immediate():
    """Every token of plain text is shown at once."""
    assert all(TextStream(BYTES).push(token) for token in BYTES.encode("the cat"))


@pytest.mark.parametrize("piece", ["<0x41>", "<0xFF>", "<0x0A>", "<0xZZ>", "<0x+1>", "<0x 1>", "<0x-0>"])
def test_byte_pieces(piece):
    """What counts as a byte is the library's decision, odd spellings included."""
    tokenizer = TOKENIZERS["llama 2"]
    ids = [WORDS.index("x"), WORDS.index(piece), WORDS.index("x")]
    assert "".join(stream(tokenizer, ids)[0]) == tokenizer.decode(ids)


@pytest.mark.parametrize("stop", ["END", ["a", ""], [3], [None]])
def test_wrong_stops(stop, refused):
    """A single string was taken as a list of letters, and the empty string stops everything."""
    with refused(OptionError, "list of non-empty strings"):
        TextStream(BYTES, stop)


@pytest.mark.parametrize(
    "decoder", [decoders.WordPiece(), decoders.Sequence([*SENTENCEPIECE[:3], decoders.Strip(" ", 0, 1)])]
)
def test_unknown_decoder(decoder, refused):
    """A decoder that is not known here would be streamed wrongly."""
    with refused(UnsupportedModelError, "ByteLevel"):
        TextStream(words(decoder))
