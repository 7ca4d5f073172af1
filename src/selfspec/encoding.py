"""From a prompt, or messages, to token ids: as a request says, through the chat template where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.errors import PromptError
from selfspec.model.chat import TemplateInputs
from selfspec.model.messages import Message, check_messages

if TYPE_CHECKING:
    from selfspec.model import Tokenizer
    from selfspec.model.config import ModelConfig
    from selfspec.request import Request


def encoded(
    prompt: str | Sequence[int] | None,
    messages: Sequence[Message] | None,
    request: Request,
    tokenizer: Tokenizer | None,
    config: ModelConfig,
) -> list[int]:
    """The token ids of a prompt (text, or token ids as they are) or of messages.

    Raises PromptError for what this model cannot answer.
    """
    if (prompt is None) == (messages is None):
        raise PromptError("give either a prompt or messages")
    tokens = _tokens(prompt, messages, request, tokenizer)
    vocab, context = config.vocab_size, config.context_length
    if wrong := [t for t in tokens if not 0 <= t < vocab]:
        raise PromptError(f"token id {wrong[0]} is outside this model's vocabulary of {vocab}")
    if not tokens:
        raise PromptError("the prompt is empty; give at least one token")
    if len(tokens) >= context:
        raise PromptError(
            f"the prompt has {len(tokens)} tokens; this model's context is {context}, "
            f"so it may have at most {context - 1}"
        )
    return tokens


def _tokens(
    prompt: str | Sequence[int] | None,
    messages: Sequence[Message] | None,
    request: Request,
    tokenizer: Tokenizer | None,
) -> list[int]:
    if prompt is not None and not isinstance(prompt, str):
        return _token_ids(prompt, request)
    if tokenizer is None:
        raise PromptError("this engine has no tokenizer; give the prompt as token ids")
    if prompt is not None and not prompt.strip():
        raise PromptError("the prompt is empty; give some text")
    wants_chat = request.chat if request.chat is not None else tokenizer.has_chat_template
    if messages is None and not wants_chat:
        if asked := _for_chat(request):
            raise PromptError(f"{asked} needs the chat template; leave it out or use chat")
        assert isinstance(prompt, str)
        return tokenizer.encode(prompt)
    if messages is not None:
        check_messages(messages)
        if request.chat is False:
            raise PromptError("messages need the chat template; chat=False is for a plain prompt")
    elif request.continue_final_message:
        raise PromptError("continue_final_message goes on with the last of messages; a prompt has none")
    turns = list(messages) if messages is not None else [{"role": "user", "content": str(prompt)}]
    if request.system is not None:
        turns.insert(0, {"role": "system", "content": request.system})
    return tokenizer.encode_chat(turns, not request.continue_final_message, request.template_inputs)


def _for_chat(request: Request) -> str:
    """What of a request only a chat template can take; "" if nothing."""
    if request.system is not None:
        return "a system message"
    inputs, default = request.template_inputs, TemplateInputs()
    given = (f.name for f in fields(TemplateInputs) if getattr(inputs, f.name) != getattr(default, f.name))
    return next(given, "")


def _token_ids(prompt: Any, request: Request) -> list[int]:
    """A prompt of token ids, as it is given: nothing may be lost on the way."""
    if request.chat or _for_chat(request):
        raise PromptError(f"{_for_chat(request) or 'chat'} needs a text prompt; this one is token ids")
    if not isinstance(prompt, Sequence | np.ndarray) or isinstance(prompt, bytes):
        raise PromptError(f"the prompt is a {type(prompt).__name__}; it must be text or a list of token ids")
    if wrong := [t for t in prompt if isinstance(t, bool) or not isinstance(t, int | np.integer)]:
        raise PromptError(f"the prompt holds {str(wrong[0])[:40]!r}; token ids are integers")
    return [int(token) for token in prompt]
