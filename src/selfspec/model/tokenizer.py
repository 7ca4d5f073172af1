"""Text to tokens and back, and conversations to prompts."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Backend

from selfspec.errors import PromptError, UnsupportedModelError
from selfspec.model.chat import ChatTemplate, TemplateInputs
from selfspec.model.tokenizer_files import TokenizerFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tokenizers import AddedToken

    from selfspec.model.messages import Message


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
        self.limit = limit
        self.eos_token_ids = tuple(eos_token_ids)

    @classmethod
    def from_folder(cls, folder: Path, limit: int | None = None) -> Tokenizer:
        """Read ``tokenizer.json`` and the files around it, as `TokenizerFiles`.

        Raises
        ------
        ModelNotFoundError
            There is no ``tokenizer.json``.
        CorruptModelError
            A file is damaged, or the files contradict each other.
        """
        files = TokenizerFiles(folder)
        templates = files.templates()
        return cls(
            files.backend,
            eos_token_ids=files.eos_ids(limit),
            template=ChatTemplate(templates, files.names) if templates else None,
            limit=limit,
        )

    @classmethod
    def of(cls, tokenizer: Any) -> Tokenizer:
        """Copy what a fast tokenizer object of ``transformers`` knows.

        Raises
        ------
        UnsupportedModelError
            It is a slow tokenizer.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UnsupportedModelError(
                f"{type(tokenizer).__name__} is not a fast tokenizer; load it with use_fast=True"
            )
        eos, template = tokenizer.eos_token_id, tokenizer.chat_template
        templates = template if isinstance(template, dict) else {"default": template} if template else {}
        names = {key: str(value) for key, value in tokenizer.special_tokens_map.items() if value}
        copy = Backend.from_str(backend.to_str())
        copy.encode_special_tokens = backend.encode_special_tokens  # to_str leaves it out
        return cls(
            copy,
            eos_token_ids=() if eos is None else (eos,),
            template=ChatTemplate(templates, names) if templates else None,
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

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template shows tools to the model."""
        return self._template is not None and self._template.takes_tools

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides which tokens a text or a conversation becomes."""
        whole = hashlib.sha256(self._backend.to_str().encode())
        if self._template is not None:
            whole.update(json.dumps(self._template.sources, sort_keys=True).encode())
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
        if self.limit is not None and ids and max(ids) >= self.limit:
            raise PromptError(
                f"the text has the token {self.piece(max(ids))!r} with id {max(ids)}, but this model has "
                f"embeddings for ids below {self.limit} only; leave that token out"
            )
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD. No spaces are cleaned up."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        inputs: TemplateInputs = TemplateInputs(),  # noqa: B008 - frozen
    ) -> str:
        """The prompt of a conversation, as text, special tokens included.

        Raises
        ------
        PromptError
            There is no chat template, or it does not take these messages, tools or documents.
        OptionError
            A tool is no schema, or the template does not read an option.
        """
        if self._template is None:
            raise PromptError("this model has no chat template; pass a plain prompt instead of messages")
        return self._template.render(messages, add_generation_prompt, inputs)

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        inputs: TemplateInputs = TemplateInputs(),  # noqa: B008 - frozen
    ) -> list[int]:
        """The prompt of a conversation as tokens.

        The template writes all special tokens, so none are added (no second BOS). Raises as ``render``.
        """
        return self.encode(self.render(messages, add_generation_prompt, inputs), add_special_tokens=False)
