"""Text to tokens and back, and conversations to prompts."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from selfspec.errors import CorruptModelError, ModelNotFoundError, PromptError, UnsupportedModelError
from selfspec.model.chat import ChatTemplate
from selfspec.model.reading import Fields, listed, one_line, quoted, read_json_if_there

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from selfspec.model.chat import Message

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A tokenizer of the ``tokenizers`` library with the facts that a checkpoint keeps around it.

    ``eos_token_ids`` end a text. ``template`` is the chat template, if any. ``limit`` is the number of
    embeddings of the model: a token from it on cannot be read by the model.
    """

    def __init__(
        self,
        backend: Backend,
        eos_token_ids: Sequence[int] = (),
        template: ChatTemplate | None = None,
        limit: int | None = None,
    ) -> None:
        # settings of somebody's training run, which some files still carry
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._template = template
        self._limit = limit
        self.eos_token_ids = tuple(eos_token_ids)

    @classmethod
    def from_folder(cls, folder: Path, limit: int | None = None) -> Tokenizer:
        """Read ``tokenizer.json`` and the files around it.

        Ids that end a text: ``generation_config.json``, else ``config.json``, else the ``eos_token``.
        The chat template: ``chat_template.jinja``, else the one in ``tokenizer_config.json``.

        Raises
        ------
        ModelNotFoundError
            There is no ``tokenizer.json``.
        CorruptModelError
            A file is damaged, or the files contradict each other.
        """
        backend = _read_backend(folder)
        settings = Fields(read_json_if_there(folder / "tokenizer_config.json"), "tokenizer_config.json")
        names = _special_tokens(folder, settings)
        _add_tokens(backend, settings, names)
        source = _template_source(folder, settings)
        return cls(
            backend,
            eos_token_ids=_eos_ids(folder, backend, names),
            template=None if source is None else ChatTemplate(source, names),
            limit=limit,
        )

    @classmethod
    def of(cls, tokenizer: Any) -> Tokenizer:
        """Copy what a fast tokenizer object of ``transformers`` knows.

        Raises
        ------
        UnsupportedModelError
            It is a slow tokenizer, or has several chat templates and none is the default.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UnsupportedModelError(
                f"{type(tokenizer).__name__} is not a fast tokenizer; load it with use_fast=True"
            )
        eos, template = tokenizer.eos_token_id, tokenizer.chat_template
        if isinstance(template, dict):
            template = _chosen_template(template)
        names = {key: str(value) for key, value in tokenizer.special_tokens_map.items() if value}
        return cls(
            Backend.from_str(backend.to_str()),
            eos_token_ids=() if eos is None else (eos,),
            template=None if template is None else ChatTemplate(template, names),
        )

    @property
    def vocab_size(self) -> int:
        """How many tokens there are, added ones included; the model may have more embeddings."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def base_vocab_size(self) -> int:
        """How many tokens there are without added ones."""
        return self._backend.get_vocab_size(with_added_tokens=False)

    @property
    def has_chat_template(self) -> bool:
        """Whether ``render`` and ``encode_chat`` work."""
        return self._template is not None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides which tokens a text or a conversation becomes."""
        whole = hashlib.sha256(self._backend.to_str().encode())
        if self._template is not None:
            whole.update(self._template.source.encode())
        return whole.hexdigest()

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are not text: ``decode`` skips them."""
        added: Mapping[int, AddedToken] = self._backend.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    @cached_property
    def decoder(self) -> dict[str, Any] | None:
        """How pieces become text, as ``tokenizer.json`` writes it."""
        decoder = self._backend.decoder
        return None if decoder is None else json.loads(decoder.__getstate__())

    def piece(self, token: int) -> str | None:
        """The token as the vocabulary spells it; None for an id without a token."""
        piece: str | None = self._backend.id_to_token(token)
        return piece

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a text; special tokens spelled out in it are recognised.

        ``add_special_tokens`` adds what ``tokenizer.json`` adds around a text, a BOS token for instance.

        Raises
        ------
        PromptError
            The text is not valid Unicode, or has a token that the model has no embedding for.
        """
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeEncodeError) as error:
            raise PromptError(
                "the text has bytes that are not valid UTF-8 (lone surrogates); check the locale of the terminal"
            ) from error
        return self._limited(ids)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of many texts, on all cores, without what is added around a text. Raises as ``encode``."""
        try:
            found = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise PromptError("a text is not valid Unicode (lone surrogates)") from error
        return [self._limited(encoding.ids) for encoding in found]

    def _limited(self, ids: list[int]) -> list[int]:
        if self._limit is not None and ids and max(ids) >= self._limit:
            raise PromptError(
                f"the text has the token {self.piece(max(ids))!r} with id {max(ids)}, but this model has "
                f"embeddings for ids below {self._limit} only; leave that token out"
            )
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD. No spaces are cleaned up."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation, as text, special tokens included.

        Raises
        ------
        PromptError
            There is no chat template, or it does not take these messages.
        """
        if self._template is None:
            raise PromptError("this model has no chat template; pass a plain prompt instead of messages")
        return self._template.render(messages, add_generation_prompt)

    def encode_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """The prompt of a conversation as tokens.

        The template writes all special tokens, so none are added (no second BOS). Raises as ``render``.
        """
        return self.encode(self.render(messages, add_generation_prompt), add_special_tokens=False)


# -- reading ----------------------------------------------------------------------------------------------


def _read_backend(folder: Path) -> Backend:
    path = folder / "tokenizer.json"
    if not path.is_file():
        if (folder / "tokenizer.model").is_file():
            raise ModelNotFoundError(
                f"{quoted(folder)} has only a tokenizer.model; a tokenizer.json is needed: load the "
                "tokenizer with transformers and save_pretrained it into the folder"
            )
        raise ModelNotFoundError(
            f"there is no tokenizer.json in {quoted(folder)}; add that of the model which this one came from"
        )
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CorruptModelError(f"{quoted(path)} cannot be read ({one_line(error)}); download it again") from error


def _content(fields: Fields, key: str) -> str | None:
    value = fields.raw(key)
    if isinstance(value, dict):  # an AddedToken with its flags
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise fields.wrong(key, value, "a string or a token object")
    return value


def _special_tokens(folder: Path, settings: Fields) -> dict[str, str]:
    """``bos_token`` and the like -> their strings; ``tokenizer_config.json`` goes first."""
    older = Fields(read_json_if_there(folder / "special_tokens_map.json"), "special_tokens_map.json")
    found = {key: _content(settings, key) or _content(older, key) for key in _NAMED_TOKENS}
    extra = settings.raw("extra_special_tokens")
    if isinstance(extra, dict):
        found.update({str(key): value for key, value in extra.items() if isinstance(value, str)})
    return {key: value for key, value in found.items() if value}


def _add_tokens(backend: Backend, settings: Fields, names: Mapping[str, str]) -> None:
    """Make the special tokens of ``tokenizer_config.json`` known that ``tokenizer.json`` does not add."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed_tokens = settings.child("added_tokens_decoder")
    for number, entry in _sorted_entries(listed_tokens):
        flags = {key: entry[key] for key in ("lstrip", "rstrip", "normalized", "single_word") if key in entry}
        content, special = entry["content"], bool(entry.get("special"))
        if content not in known:
            backend.add_tokens([AddedToken(content, special=special, **flags)])
        if backend.token_to_id(content) != number:
            raise CorruptModelError(
                f"the token {content!r} has id {number} in tokenizer_config.json and "
                f"{backend.token_to_id(content)} in tokenizer.json; download both files again"
            )
        known.add(content)
    # a token that is in no vocabulary has no embedding either: there is nothing to recognise
    missing = [name for name in names.values() if name not in known and backend.token_to_id(name) is not None]
    backend.add_special_tokens(missing)


def _sorted_entries(fields: Fields | None) -> list[tuple[int, dict[str, Any]]]:
    entries: dict[str, Any] = fields.raw_items() if fields else {}
    for number, entry in entries.items():
        if not number.isdecimal() or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise CorruptModelError(
                f"added_tokens_decoder has the entry {one_line(number, 40)!r} in tokenizer_config.json; "
                "it must be a token id with its token: download the file again"
            )
    return sorted((int(number), entry) for number, entry in entries.items())


def _eos_ids(folder: Path, backend: Backend, names: Mapping[str, str]) -> tuple[int, ...]:
    for file in ("generation_config.json", "config.json"):
        if ids := Fields(read_json_if_there(folder / file), file).ids("eos_token_id"):
            return ids
    number = backend.token_to_id(names["eos_token"]) if "eos_token" in names else None
    return () if number is None else (number,)


def _template_source(folder: Path, settings: Fields) -> str | None:
    path = folder / "chat_template.jinja"
    if os.path.lexists(path):
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CorruptModelError(
                f"{quoted(path)} cannot be read ({one_line(error)}); download it again"
            ) from error
    value = settings.raw("chat_template")
    if isinstance(value, list):
        return _named_template(settings, value)
    if value is not None and not isinstance(value, str):
        raise settings.wrong("chat_template", value, "a string or a list of named templates")
    return value


def _named_template(settings: Fields, entries: list[Any]) -> str | None:
    templates: dict[str, str] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("template"), str):
            raise settings.wrong("chat_template", entries, "a string or a list of named templates")
        templates[str(entry.get("name"))] = entry["template"]
    return _chosen_template(templates)


def _chosen_template(templates: Mapping[str, str]) -> str | None:
    if len(templates) > 1 and "default" not in templates:
        raise UnsupportedModelError(
            f"the tokenizer has the chat templates {listed(templates)}; one must be named 'default'"
        )
    return templates.get("default") or next(iter(templates.values()), None)
