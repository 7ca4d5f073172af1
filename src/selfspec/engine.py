"""Text in, text out: load a model once, then generate, stream or chat with it."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.errors import OptionError, PromptError, RuntimeMissingError
from selfspec.model import EMBEDDED, TextStream, Tokenizer, find_checkpoint
from selfspec.request import Chunk, Completion, Request, draft_buffers
from selfspec.sampling import Chance
from selfspec.types import Stats

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
    from types import TracebackType

    from selfspec.drafters.base import Drafter
    from selfspec.runtime.base import Cache, Runtime

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
        if dtype is not None:
            raise OptionError(f"dtype is {dtype!r} with a model object; convert the model itself with .to(...)")
        own = None if tokenizer is None else Tokenizer.of(tokenizer)
        return Engine(runtime_class.of(model), own, type(model).__name__, **options)
    if tokenizer is not None:
        raise OptionError("tokenizer is only for a model object; a checkpoint brings its own")
    checkpoint = find_checkpoint(model, notify=notify)
    runtime = runtime_class.load(checkpoint.config, checkpoint.weight_files, dtype, device)
    return Engine(runtime, checkpoint.tokenizer, checkpoint.name, **options)


def _torch_runtime() -> Any:
    try:
        from selfspec.runtime.torch import TorchRuntime
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise RuntimeMissingError(
            "no runtime is installed: torch is missing; install it with: pip install 'selfspec[torch]'"
        ) from error
    return TorchRuntime


class Engine:
    """A loaded model. Generations share the weights; each has its own cache, so streams may interleave."""

    def __init__(self, runtime: Runtime, tokenizer: Tokenizer | None, name: str, **options: Any) -> None:
        self.runtime = runtime
        self.config = runtime.config
        self.tokenizer = tokenizer
        self.name = name
        self._defaults: dict[str, Any] = {"draft": DEFAULT_DRAFT}
        self._drafters: dict[Any, Drafter] = {}
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
        draft = merged["draft"]
        key: Any = (draft, *sorted(rest.items(), key=lambda item: item[0]))
        if key not in self._drafters:
            try:
                self._drafters[key] = drafters.create(draft, self.config, rest)
            except OptionError as error:
                raise _with_request_options(error, rest) from None
        return request, self._drafters[key]

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
            return [int(token) for token in prompt]
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
        turns = list(messages) if messages is not None else [{"role": "user", "content": str(prompt)}]
        if request.system is not None:
            turns.insert(0, {"role": "system", "content": request.system})
        return self.tokenizer.encode_chat(turns)


def _with_request_options(error: OptionError, given: dict[str, Any]) -> OptionError:
    """Name the options of a generation too when the unknown one belongs to neither."""
    if "has no option" not in str(error) or not given:
        return error
    return OptionError(f"{error}, and every generation has {', '.join(sorted(_REQUEST_FIELDS))}")


class _Memory:
    """A cache kept between turns of a conversation, and the tokens whose keys and values it holds."""

    def __init__(self) -> None:
        self.cache: Cache | None = None
        self.tokens: list[int] = []

    def open(self, runtime: Runtime, prompt: Sequence[int], length: int) -> tuple[Cache, int]:
        """A cache of at least ``length`` cells, and how many tokens of ``prompt`` it holds already."""
        if self.cache is None:
            self.cache = runtime.new_cache(1, length)
        elif self.cache.length < length:  # doubling keeps the copies few
            self.cache = self.cache.longer(max(length, min(2 * length, runtime.config.context_length)))
        shared = 0
        for ours, theirs in zip(self.tokens, prompt[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        return self.cache, shared


class Stream:
    """A generation that runs as it is iterated; ``completion`` runs it to its end.

    ``close`` (or leaving a ``with`` block) ends it early.
    """

    def __init__(self, engine: Engine, prompt: list[int], request: Request, drafter: Drafter) -> None:
        self._engine = engine
        self._prompt = prompt
        self._request = request
        self._drafter = drafter
        self._sampling = request.sampling(engine.config, engine.tokenizer, len(prompt))
        self._seed = secrets.randbits(32) if request.seed is None else request.seed
        self._completion: Completion | None = None
        self._memory = _Memory()
        self._answered: Callable[[str], None] = lambda _: None
        self._chunks = self._run()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def attach(self, memory: _Memory, answered: Callable[[str], None]) -> None:
        """Use a conversation's cache, and tell it the answer, however the stream ends. Before iterating."""
        self._memory, self._answered = memory, answered

    def close(self) -> None:
        """Stop generating and let go of the cache."""
        self._chunks.close()

    @property
    def completion(self) -> Completion:
        """The finished generation; runs what is left of it. Raises RuntimeError after an early `close`."""
        for _ in self._chunks:
            pass
        if self._completion is None:
            raise RuntimeError("the stream was closed before it ended")
        return self._completion

    def _run(self) -> Generator[Chunk, None, None]:
        engine, request, prompt, memory = self._engine, self._request, self._prompt, self._memory
        config = engine.config
        writer = TextStream(engine.tokenizer, request.stops) if engine.tokenizer else None
        final = _Ending(writer, () if request.ignore_eos else config.eos_token_ids)
        limit = request.limit(config, len(prompt))
        cache, cached = memory.open(engine.runtime, prompt, limit)
        memory.tokens = memory.tokens[:cached]
        chance = Chance(self._seed)
        text = Text(0, 0, list(prompt), limit, self._sampling, chance, final, cached)
        stats = Stats()
        try:
            for round_ in decode(Context(engine.runtime, cache), [text], self._drafter):
                stats.add(round_)
                yield from final.chunks(round_.commits[0].accepted, text.finish_reason is not None)
        finally:
            memory.tokens = text.tokens[: text.cached]
            self._answered(final.text)
        assert text.finish_reason is not None
        self._completion = Completion(
            text=final.text,
            token_ids=tuple(text.tokens[len(prompt) :]),
            prompt_tokens=len(prompt),
            finish_reason=text.finish_reason,
            stats=stats,
            seed=self._seed,
            model=engine.name,
            runtime=engine.runtime.name,
            precision=engine.runtime.precision,
            draft=self._drafter.name,
            plan=str(self._drafter.plan or "none"),
            gamma=self._drafter.options.gamma,
            kv_bytes=cache.nbytes,
            buffers=draft_buffers(config, self._drafter, self._sampling, engine.runtime.value_bytes),
        )


class _Ending:
    """Decides after every token whether the text is complete, and keeps the text that each one released."""

    def __init__(self, writer: TextStream | None, eos: tuple[int, ...]) -> None:
        self._writer = writer
        self._eos = eos
        self._new: list[tuple[int, str]] = []

    def __call__(self, token: int) -> bool:
        ended = token in self._eos
        piece = "" if ended or self._writer is None else self._writer.push(token)
        self._new.append((token, piece))
        return ended or (self._writer is not None and self._writer.is_stopped)

    @property
    def text(self) -> str:
        return "" if self._writer is None else self._writer.text

    def chunks(self, accepted: int, is_last: bool) -> Iterator[Chunk]:
        """The tokens since the last call; the first ``accepted`` were drafted."""
        new, self._new = self._new, []
        for i, (token, piece) in enumerate(new):
            rest = self._writer.finish() if is_last and self._writer and i == len(new) - 1 else ""
            yield Chunk(piece + rest, token, "draft" if i < accepted else "bonus")


class AsyncStream:
    """A `Stream` for ``async for``; cancelling waits for the round in flight, then closes it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            while (chunk := await self._next()) is not None:
                yield chunk
        finally:
            self._stream.close()

    async def _next(self) -> Chunk | None:
        task = asyncio.ensure_future(asyncio.to_thread(next, self._stream, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    @property
    def completion(self) -> Completion:
        """The finished generation, once the stream has been iterated to its end."""
        return self._stream.completion


class Conversation:
    """Turns of a chat. The cache stays between turns, so only what is new is prefilled."""

    def __init__(self, engine: Engine, system: str | None = None) -> None:
        self._engine = engine
        self._memory = _Memory()
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]

    def say(self, text: str, **options: Any) -> Stream:
        """Answer ``text``. Question and answer join ``messages`` when the stream ends or is closed.

        Errors in the arguments are raised here, and add nothing.
        """
        if not text.strip():
            raise PromptError("the message is empty; give some text")
        asked = {"role": "user", "content": text}

        def answered(answer: str) -> None:
            self.messages += [asked, {"role": "assistant", "content": answer}]

        stream = self._engine.stream(messages=[*self.messages, asked], **options)
        stream.attach(self._memory, answered)
        return stream
