"""What single tokens are: text as far as they are characters, and the bytes that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.model.textstream import byte_of_character, byte_piece

if TYPE_CHECKING:
    from selfspec.model.tokenizer import Tokenizer


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes of a token, often a part of a character; those of a special token spell its name.

    An id without a token has none. Tokens that start a word bring their space, also at the start of a text.
    """
    piece = tokenizer.piece(token)
    if piece is None:
        return b""
    if token in tokenizer.special_ids or tokenizer.decoder is None:
        return piece.encode()
    decoder = tokenizer.decoder
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    if steps[0]["type"] == "ByteLevel":
        alphabet = byte_of_character()
        is_plain = any(character not in alphabet for character in piece)  # an added token
        return piece.encode() if is_plain else bytes(alphabet[character] for character in piece)
    if steps[0]["type"] == "Metaspace":
        return str(piece).replace(steps[0]["replacement"], " ").encode()
    byte = byte_piece(piece)  # SentencePiece: Replace, ByteFallback, Fuse
    if byte is not None:
        return bytes([byte])
    return str(piece).replace(steps[0]["pattern"]["String"], steps[0]["content"]).encode()
