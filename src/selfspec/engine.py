"""Text in, text out: load a model once, then generate, stream or chat with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec import drafters
from selfspec.errors import OptionError, PromptError, RuntimeMissingError
from selfspec.model import EMBEDDED, Tokenizer, find_checkpoint
from selfspec.model.chat import check_messages
from selfspec.request import Completion, Request
from selfspec.stream import AsyncStream, Memory, Stream

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from selfspec.drafters.base import Drafter
    from selfspec.runtime.base import Runtime

Message = dict[str, str]
DEFAULT_DRAFT = "ngram"
_REQUEST_FIELDS = frozenset(f.name for f in fields(Request))


def load(
    model: str | os.PathLike[str] | Any = EMBEDDED,
    *,
    tokenizer: Any = None,
    dtype: str | None = None,
    device: str = "auto",
    notify: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Engine:
    """Load a model and choose how it drafts.

    Parameters
    ----------
    model
        ``"smollm2-135m"`` (the embedded model), a Hugging Face folder, a ``.gguf`` file, a hub id, or a
        transformers model object, whose parameter tensors are then shared, not copied.
    tokenizer
        Only with a model object: its fast tokenizer. Without one, prompts are token ids.
    dtype
        "float64", "float32", "bfloat16" or "float16"; None keeps the stored precision.
    device
        "auto" (a GPU if there is one), "cpu", "cuda", ...
    notify
        Called with a line when something takes long or was repaired (conversion, damaged cache).
    options
        ``draft`` and that drafter's options (``gamma``, ``exit_layer``, ...), and defaults for every
        generation (``max_new_tokens``, ``temperature``, ...).

    Raises
    ------
    SelfspecError
        See ``selfspec.errors``.
    """
    runtime_class = _torch_runtime()
    if hasattr(model, "state_dict"):
        if dtype is not None or device != "auto":
            raise OptionError("dtype and device are not for a model object; convert the model itself with .to(...)")
        own = None if tokenizer is None else Tokenizer.of(tokenizer)
        ends = () if own is None else own.eos_token_ids
        return Engine(runtime_class.of(model, ends), own, type(model).__name__, **options)
    if tokenizer is not None:
        raise OptionError("tokenizer is only for a model object; a checkpoint brings its own")
    checkpoint = find_checkpoint(model, notify=notify)
    runtime = runtime_class.load(checkpoint.config, checkpoint.weight_files, dtype, device)
    engine = Engine(runtime, checkpoint.tokenizer, checkpoint.name, **options)
    engine.fingerprint = checkpoint.fingerprint
    return engine


def _torch_runtime() -> Any:
    try:
        from selfspec.runtime.torch import TorchRuntime
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise RuntimeMissingError(
            "no runtime is installed: torch is missing; install it with: pip install torch"
        ) from error
    return TorchRuntime


class Engine:
    """A loaded model. Generations share the weights; each has its own cache, so streams may interleave."""

    def __init__(self, runtime: Runtime, tokenizer: Tokenizer | None, name: str, **options: Any) -> None:
        self.runtime = runtime
        self.config = runtime.config
        self.tokenizer = tokenizer
        self.name = name
        self.fingerprint: str | None = None  # of the checkpoint; a model object has none
        self._defaults: dict[str, Any] = {"draft": DEFAULT_DRAFT}
        self._kinds: dict[str, type[Drafter]] = {}  # finding one reads the metadata of all packages
        self._defaults |= options
        request, _ = self._ask({})  # a wrong option is an error now, not at the first prompt
        request.sampling(self.config, self.tokenizer, 1)

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Any,
    ) -> Completion:
        """Answer ``prompt`` (text, or token ids taken as they are) or ``messages``; see `Request` for options."""
        return self.stream(prompt, messages=messages, **options).completion

    def stream(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Any,
    ) -> Stream:
        """Like `generate`, token by token; errors in the arguments are raised here, before anything runs."""
        request, drafter = self._ask(options)
        return Stream(self, self._encode(prompt, messages, request), request, drafter)

    def astream(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Any,
    ) -> AsyncStream:
        """Like `stream`, for ``async for``; the model runs in a worker thread."""
        return AsyncStream(self.stream(prompt, messages=messages, **options))

    def chat(self, system: str | None = None) -> Conversation:
        """A conversation that keeps its cache between turns."""
        if self.tokenizer is None or not self.tokenizer.has_chat_template:
            raise OptionError(f"{self.name} has no chat template; use generate with a plain prompt")
        return Conversation(self, system)

    def _ask(self, options: dict[str, Any]) -> tuple[Request, Drafter]:
        """Split options into those of the request and those of its drafter, on top of the engine's own."""
        merged = dict(self._defaults)
        if (draft := options.get("draft")) is None:
            options = {**options, "draft": merged["draft"]}
        elif draft != merged["draft"]:  # the engine's draft options belong to its own drafter
            merged = {name: value for name, value in merged.items() if name in _REQUEST_FIELDS}
        merged |= options
        request = Request(**{name: value for name, value in merged.items() if name in _REQUEST_FIELDS})
        rest = {name: value for name, value in merged.items() if name not in _REQUEST_FIELDS}
        if request.stops and self.tokenizer is None:
            raise OptionError("stop needs a tokenizer, and this engine has none")
        try:
            return request, drafters.create(self._kind(merged["draft"]), self.config, rest)
        except OptionError as error:
            raise _with_request_options(error, rest) from None

    def _kind(self, draft: Any) -> Any:
        """The class of a drafter's name; what is no name as it is."""
        if not isinstance(draft, str):
            return draft
        if draft not in self._kinds:
            self._kinds[draft] = drafters.drafter_class(draft)
        return self._kinds[draft]

    def encode(
        self, prompt: str | Sequence[int] | None = None, *, messages: Sequence[Message] | None = None
    ) -> list[int]:
        """The token ids of a prompt as `generate` makes them, chat template included."""
        return self._encode(prompt, messages, Request())

    def _encode(
        self, prompt: str | Sequence[int] | None, messages: Sequence[Message] | None, request: Request
    ) -> list[int]:
        if (prompt is None) == (messages is None):
            raise PromptError("give either a prompt or messages")
        tokens = self._tokens(prompt, messages, request)
        vocab, context = self.config.vocab_size, self.config.context_length
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
        self, prompt: str | Sequence[int] | None, messages: Sequence[Message] | None, request: Request
    ) -> list[int]:
        if prompt is not None and not isinstance(prompt, str):
            return _token_ids(prompt, request)
        if self.tokenizer is None:
            raise PromptError("this engine has no tokenizer; give the prompt as token ids")
        if prompt is not None and not prompt.strip():
            raise PromptError("the prompt is empty; give some text")
        wants_chat = request.chat if request.chat is not None else self.tokenizer.has_chat_template
        if messages is None and not wants_chat:
            if request.system is not None:
                raise PromptError("a system message needs the chat template; leave it out or use chat")
            assert isinstance(prompt, str)
            return self.tokenizer.encode(prompt)
        if messages is not None:
            check_messages(messages)
            if request.chat is False:
                raise PromptError("messages need the chat template; chat=False is for a plain prompt")
        turns = list(messages) if messages is not None else [{"role": "user", "content": str(prompt)}]
        if request.system is not None:
            turns.insert(0, {"role": "system", "content": request.system})
        return self.tokenizer.encode_chat(turns)


def _token_ids(prompt: Any, request: Request) -> list[int]:
    """A prompt of token ids, as it is given: nothing may be lost on the way."""
    if request.system is not None or request.chat:
        raise PromptError("a system message or chat needs a text prompt; this one is token ids")
    if not isinstance(prompt, Sequence | np.ndarray) or isinstance(prompt, bytes):
        raise PromptError(f"the prompt is a {type(prompt).__name__}; it must be text or a list of token ids")
    if wrong := [t for t in prompt if isinstance(t, bool) or not isinstance(t, int | np.integer)]:
        raise PromptError(f"the prompt holds {str(wrong[0])[:40]!r}; token ids are integers")
    return [int(token) for token in prompt]


def _with_request_options(error: OptionError, given: dict[str, Any]) -> OptionError:
    """Name the options of a generation too when the unknown one belongs to neither."""
    if "has no option" not in str(error) or not given:
        return error
    return OptionError(f"{error}, and every generation has {', '.join(sorted(_REQUEST_FIELDS))}")


class Conversation:
    """Turns of a chat. The cache stays between turns, so only what is new is prefilled."""

    def __init__(self, engine: Engine, system: str | None = None) -> None:
        self._engine = engine
        self._memory = Memory()
        self._last: Stream | None = None
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]

    def say(self, text: str, **options: Any) -> Stream:
        """Answer ``text``. Question and answer join ``messages`` when the stream ends, or is closed half-way.

        One answer at a time: they share the cache. Errors in the arguments are raised here, and add nothing.
        """
        if self._last is not None and not self._last.is_ended:
            raise PromptError("the last answer is still being written; finish it, or close its stream")
        if not isinstance(text, str) or not text.strip():
            raise PromptError("the message is empty; give some text")
        asked = {"role": "user", "content": text}

        def answered(answer: str) -> None:
            self.messages += [asked, {"role": "assistant", "content": answer}]

        stream = self._engine.stream(messages=[*self.messages, asked], **options)
        stream.attach(self._memory, answered)
        self._last = stream
        return stream
