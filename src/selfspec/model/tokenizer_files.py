"""The tokenizer of a folder: ``tokenizer.json``, and what the files around it change and add.

They are read as transformers 5 reads them. ``add_bos_token`` and ``add_eos_token`` do nothing beside a
``tokenizer.json``, whose own rule counts; ``special_tokens_map.json`` and ``added_tokens.json`` count only where
``tokenizer_config.json`` has no ``added_tokens_decoder``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from selfspec.errors import CorruptModelError, ModelNotFoundError
from selfspec.model.cache import has_own_texts
from selfspec.model.reading import Fields, one_line, quoted, read_json_if_there
from selfspec.model.tokenizer_class import class_of, pipeline_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from selfspec.model.tokenizer_class import Pipeline

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA, _FORMER = "extra_special_tokens", "additional_special_tokens"
_FLAGS = ("lstrip", "rstrip", "normalized", "single_word")
_DEFAULT = "default"


class TokenizerFiles:
    """A folder's ``backend``, the strings of its special tokens by name (``names``), and what else it says.

    Raises
    ------
    ModelNotFoundError
        There is no ``tokenizer.json``.
    CorruptModelError
        A file is damaged, or the files contradict each other.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings = self._fields("tokenizer_config.json")
        self._is_whole = "added_tokens_decoder" in self._settings
        self.backend = _read_backend(folder)
        named = self._named()
        pipeline = self._pipeline()
        if pipeline is not None:
            missing = set(pipeline.names) - set(self._settings.raw_items())
            named = {key: _special(pipeline.names[key]) for key in pipeline.names if key in missing} | named
        self.names: Mapping[str, str] = {key: token.content for key, token in named.items()}
        if pipeline is not None:
            pipeline.apply(self.backend, self._settings, self.names)
            _mark_special(self.backend, set(self.names.values()))
        self._add_tokens(named)
        self.backend.encode_special_tokens = self._settings.flag("split_special_tokens", False)

    def _pipeline(self) -> Pipeline | None:
        """The steps that a class puts in the place of those of the file; never in a folder that we converted."""
        if has_own_texts(self._folder):
            return None
        name = class_of(self._settings, self._fields("config.json"), self._folder / "tokenizer.json")
        return pipeline_of(name, self.backend)

    def eos_ids(self, limit: int | None) -> tuple[int, ...]:
        """Ids that end a text: of ``generation_config.json``, else ``config.json``, else of the ``eos_token``."""
        for file in ("generation_config.json", "config.json"):
            if ids := self._fields(file).ids("eos_token_id"):
                return ids
        number = self.backend.token_to_id(self.names["eos_token"]) if "eos_token" in self.names else None
        return () if number is None or (limit is not None and number >= limit) else (number,)

    def templates(self) -> dict[str, str]:
        """The chat templates by name; one without a name is "default".

        ``chat_template.jinja`` and ``chat_templates/NAME.jinja`` go before ``tokenizer_config.json``.
        """
        single, others = self._folder / "chat_template.jinja", self._folder / "chat_templates"
        files = {path.stem: path for path in sorted(others.glob("*.jinja"))}
        if os.path.lexists(single):
            files[_DEFAULT] = single
        if files:
            return {name: _read_text(path) for name, path in files.items()}
        return _templates_of(self._settings)

    def _fields(self, file: str) -> Fields:
        return Fields(read_json_if_there(self._folder / file), file)

    def _older(self) -> Fields:
        """``special_tokens_map.json``, where it counts."""
        return Fields({}, "") if self._is_whole else self._fields("special_tokens_map.json")

    def _named(self) -> dict[str, AddedToken]:
        """``bos_token`` and the like, those that only this model has too."""
        found: dict[str, AddedToken] = {}
        for fields in (self._settings, self._older()):
            for key, value in fields.raw_items().items():
                is_named = key in _NAMED and value is not None
                if is_named or (key.endswith("_token") and isinstance(value, str | dict)):
                    found[key] = _token(fields, key, value)
            extra = fields.raw(_EXTRA)
            if isinstance(extra, dict):
                found |= {str(key): _token(fields, str(key), value) for key, value in extra.items()}
        ordered = {key: found[key] for key in (*_NAMED, *found) if key in found}  # new tokens get ids in this order
        return {key: token for key, token in ordered.items() if token.content}

    def _unnamed(self) -> list[AddedToken]:
        """Further special tokens."""
        own = _listed(self._settings, _EXTRA) or _listed(self._settings, _FORMER)
        return own + _listed(self._older(), _EXTRA)

    def _add_tokens(self, named: Mapping[str, AddedToken]) -> None:
        """Make the tokens known that ``tokenizer.json`` does not add, or with other flags; numbered ones first."""
        backend, names = self.backend, {token.content for token in named.values()}
        known: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        for number, token in self._numbered({*names, *(token.content for token in self._unnamed())}):
            if repr(known.get(number)) == repr(token) or (not self._is_whole and number in known):
                continue
            if token.content in names:
                token.special = True
            backend.add_tokens([token])
            if backend.token_to_id(token.content) != number:
                raise CorruptModelError(
                    f"the token {token.content!r} has id {number} beside tokenizer.json and "
                    f"{backend.token_to_id(token.content)} with it; download all files of the tokenizer again"
                )
        contents = {token.content for token in backend.get_added_tokens_decoder().values()}
        # what transformers takes for the former name of the list comes too late to make a known token special
        unnamed = self._unnamed() or _listed(self._older(), _FORMER)
        for token in (*named.values(), *unnamed):
            if token.content not in contents:
                contents.add(token.content)
                backend.add_tokens([token])

    def _numbered(self, special: set[str]) -> list[tuple[int, AddedToken]]:
        """Added tokens with the ids that they must get, in their order."""
        if self._is_whole:
            listed = self._settings.child("added_tokens_decoder")
            entries = listed.raw_items() if listed else {}
            found = [_entry(number, token) for number, token in entries.items()]
        else:
            older = self._fields("added_tokens.json")
            found = [
                (older.integer(content, minimum=0), AddedToken(content, special=content in special))
                for content in older.raw_items()
            ]
        return sorted(found, key=lambda pair: pair[0])


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


def _special(content: str) -> AddedToken:
    return AddedToken(content, special=True)


def _token(fields: Fields, key: str, value: object) -> AddedToken:
    """A special token: its string, or an object with its flags."""
    if isinstance(value, str):
        return _special(value)
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        return AddedToken(value["content"], special=True, **_flags(value))
    raise fields.wrong(key, value, "a string or a token object")


def _listed(fields: Fields, key: str) -> list[AddedToken]:
    values = fields.raw(key)
    return [_token(fields, key, value) for value in values] if isinstance(values, list) else []


def _flags(entry: Mapping[str, Any]) -> dict[str, bool]:
    return {flag: bool(entry[flag]) for flag in _FLAGS if flag in entry}


def _entry(number: str, entry: Any) -> tuple[int, AddedToken]:
    if not number.isdecimal() or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
        raise CorruptModelError(
            f"added_tokens_decoder has the entry {one_line(number, 40)!r} in tokenizer_config.json; "
            "it must be a token id with its token: download the file again"
        )
    return int(number), AddedToken(entry["content"], special=bool(entry.get("special")), **_flags(entry))


def _mark_special(backend: Backend, names: set[str]) -> None:
    """In classes with a pipeline of their own an added token that is named is special, whatever the file says."""
    for token in backend.get_added_tokens_decoder().values():
        if token.content in names and not token.special:
            token.special = True
            backend.add_tokens([token])


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptModelError(f"{quoted(path)} cannot be read ({one_line(error)}); download it again") from error


def _templates_of(settings: Fields) -> dict[str, str]:
    value = settings.raw("chat_template")
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        value = {str(entry.get("name")): entry.get("template") for entry in value}
    elif isinstance(value, str):
        value = {_DEFAULT: value}
    elif value is None:
        value = {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise settings.wrong("chat_template", settings.raw("chat_template"), "a string or named templates")
    return {str(name): text for name, text in value.items()}
