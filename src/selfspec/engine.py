"""Text in, text out: generate, stream or chat with a loaded model."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from selfspec import drafters
from selfspec.batch import run_batch
from selfspec.drafters.base import Drafter, Loaded
from selfspec.encoding import encoded
from selfspec.errors import OptionError, PromptError, SelfspecError
from selfspec.generation import Generation
from selfspec.grammar import KINDS, Grammars
from selfspec.learning.learner import Learner
from selfspec.model.messages import Message
from selfspec.request import Completion, Request
from selfspec.stream import AsyncStream, Memory, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec.batch import Outcome, Prepared
    from selfspec.grammar import Grammar
    from selfspec.model import Tokenizer
    from selfspec.runtime.base import Runtime
    from selfspec.tuned import Tuned

Ask = str | Sequence[int] | Mapping[str, Any]  # one request of a batch
Opener = Callable[..., Loaded]  # of a model, None for the engine's own, with keywords that say where it runs
DEFAULT_DRAFT = "auto"
DEFAULT_SLOTS = 8
T = TypeVar("T")
_REQUEST_FIELDS = frozenset(f.name for f in fields(Request))


class Engine:
    """A loaded model. Generations share the weights; each has its own cache, so streams may interleave.

    ``fingerprint`` tells checkpoints apart; it is empty for a model object. ``opener`` is what `open_model` calls,
    ``notify`` is told what takes long. ``tuned`` drafts where nobody says anything about drafting, the default
    drafter where it is None or the request has a prediction that it would not use.
    """

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer | None,
        name: str,
        fingerprint: str = "",
        opener: Opener | None = None,
        notify: Callable[[str], None] = lambda _: None,
        **options: Any,
    ) -> None:
        self.fingerprint = fingerprint
        self.runtime = runtime
        self.config = runtime.config
        self.tokenizer = tokenizer
        self.name = name
        self._opener = opener
        self.notify = notify
        self._kept: dict[Hashable, Any] = {}
        self._keeping = RLock()
        self.tuned: Tuned | None = None
        self._defaults: dict[str, Any] = {"draft": None}  # nobody has said
        self._kinds: dict[
            str, tuple[type[Drafter], dict[str, Any]]
        ] = {}  # finding one reads the metadata of all packages
        self._defaults = self._over(self._defaults, options)
        request, _ = self._ask(self._defaults)  # a wrong option is an error now, not at the first prompt
        request.sampling(self.config, self.tokenizer, 1)
        self.grammar(request)

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
        return Stream(self.runtime, self.prepare(prompt, messages=messages, **options))

    def astream(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Any,
    ) -> AsyncStream:
        """Like `stream`, for ``async for``; the model runs in a worker thread."""
        return AsyncStream(self.stream(prompt, messages=messages, **options))

    def batch(self, requests: Iterable[Ask], *, slots: int = DEFAULT_SLOTS, **options: Any) -> Iterator[Outcome]:
        """Answer many requests, ``slots`` at a time; each result as soon as it is there.

        Parameters
        ----------
        requests
            Prompts (text or token ids), or mappings with ``prompt`` or ``messages`` and options of their own. They
            are read as slots become free.
        slots
            Most texts at once. The KV cache has this many times the length of the longest text so far: prompt
            and most new tokens.
        options
            As for `generate`, for all requests; a request's own come first. A ``seed`` is that of every text, so
            equal prompts get equal answers: give each request its own where they should differ.

        Yields
        ------
        (index, result)
            In the order in which they end. Each result is what `generate` gives for the request alone, or the
            error that it raises. (Times are those of the whole round, and ``kv_bytes`` those of one slot.)

        Raises
        ------
        SelfspecError
            For ``slots`` and ``options``, at once; out of memory, while it runs.
        """
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
            raise OptionError(f"slots is {slots!r}; it must be a positive integer")
        if isinstance(requests, str | bytes | Mapping) or not isinstance(requests, Iterable):
            raise PromptError(f"requests is a {type(requests).__name__}; it must be a list of prompts or mappings")
        shared = self._over(self._defaults, options)
        self._ask(shared)
        return run_batch(self.runtime, self._prepared(requests, shared), slots)

    def prepare(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Message] | None = None,
        made: list[Drafter] | None = None,
        **options: Any,
    ) -> Generation:
        """A generation that is ready to run, for who runs several together (`selfspec.flight`); else as `generate`.

        ``made`` keeps drafters: texts with equal ones share an instance, which then drafts for them together.
        """
        return self._prepare(prompt, messages, self._over(self._defaults, options), made)

    def _prepared(self, requests: Iterable[Ask], shared: Mapping[str, Any]) -> Iterator[Prepared]:
        """Every request, ready to run, or what is wrong with it."""
        made: list[Drafter] = []
        for index, asked in enumerate(requests):
            own: dict[str, Any] = dict(asked) if isinstance(asked, Mapping) else {"prompt": asked}
            prompt, messages = own.pop("prompt", None), own.pop("messages", None)
            try:
                yield index, self._prepare(prompt, messages, self._over(shared, own), made)
            except SelfspecError as error:
                yield index, error

    def _prepare(
        self,
        prompt: str | Sequence[int] | None,
        messages: Sequence[Message] | None,
        options: Mapping[str, Any],
        made: list[Drafter] | None = None,
    ) -> Generation:
        """A generation, ready to run.

        Texts with equal drafters share the one of ``made``, which then drafts for them together.
        """
        request, drafter = self._ask(options)
        if made is not None and not isinstance(options["draft"], Drafter):
            equal = (d for d in made if type(d) is type(drafter) and d.options == drafter.options)
            drafter = next(equal, None) or _added(made, drafter)
        tokens = encoded(prompt, messages, request, self.tokenizer, self.config)
        return Generation(self, tokens, request, drafter)

    def chat(self, system: str | None = None) -> Conversation:
        """A conversation that keeps its cache between turns."""
        if self.tokenizer is None or not self.tokenizer.has_chat_template:
            raise OptionError(f"{self.name} has no chat template; use generate with a plain prompt")
        return Conversation(self, system)

    def open_model(self, model: str | os.PathLike[str] | None = None, **placement: Any) -> Loaded:
        """Another model for a drafter (`Host`), loaded once and kept as long as the engine; None: its own files."""
        if self._opener is None:
            raise OptionError(f"{self.name} was not loaded from files, and opens no others; use selfspec.load")
        key = ("model", None if model is None else os.fspath(model), *sorted(placement.items()))
        return self.kept(key, partial(self._opener, model, **placement))

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make()`` gave for this key, made once and kept as long as the engine: drafters come and go."""
        with self._keeping:  # two threads must not make it twice; making one may need another
            if key not in self._kept:
                self._kept[key] = make()
            found: T = self._kept[key]
            return found

    @property
    def learners(self) -> list[Learner]:
        """What learns beside it (`early_exit` with ``learn``): see `selfspec.learning.learner.Learner`."""
        return [made for made in list(self._kept.values()) if isinstance(made, Learner)]

    def grammar(self, request: Request) -> Grammar | None:
        """The grammar that an answer must obey, at its beginning; None where any text will do.

        Raises OptionError for a wrong grammar, or where there can be none.
        """
        if (asked := request.structure) is None:
            return None
        return self.kept("grammars", lambda: Grammars(self.tokenizer, self.config)).start(*asked)

    def _over(self, base: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """``options`` on top of those of ``base``, whose draft options belong to its own drafter."""
        merged = dict(base)
        if any(options.get(kind) is not None for kind in KINDS):  # one structure takes the place of another
            merged = {name: value for name, value in merged.items() if name not in KINDS}
        if (draft := options.get("draft")) is None:
            options = {**options, "draft": merged["draft"]}
        elif draft != (DEFAULT_DRAFT if merged["draft"] is None else merged["draft"]):
            merged = {name: value for name, value in merged.items() if name in _REQUEST_FIELDS}
        return merged | dict(options)

    def _ask(self, options: Mapping[str, Any]) -> tuple[Request, Drafter]:
        """Split options into those of the request and those of its drafter."""
        request = Request(**{name: value for name, value in options.items() if name in _REQUEST_FIELDS})
        draft, rest = self._drafting(request, options)
        if request.stops and self.tokenizer is None:
            raise OptionError("stop needs a tokenizer, and this engine has none")
        try:
            kind, within = self.kind(draft)
            return request, drafters.create(kind, self.config, drafters.over(str(draft), within, rest), self)
        except OptionError as error:
            raise _with_request_options(error, rest) from None

    def _drafting(self, request: Request, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Who drafts, and its options: who was named, else who was tuned, else the default drafter."""
        rest = {name: value for name, value in options.items() if name not in _REQUEST_FIELDS}
        if (draft := options["draft"]) is not None:
            return draft, rest
        # an option without a drafter is one of the default's, whatever was tuned: no file may break a program
        if self.tuned is None or rest or (request.prediction is not None and not self.tuned.predicts):
            return DEFAULT_DRAFT, rest
        return self.tuned.draft, dict(self.tuned.options)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The options that hold where a request does not say; ``draft`` is a name, a class or a drafter.

        Where a request says nothing about drafting, `tuned` goes before the default drafter.
        """
        own = self._defaults
        return MappingProxyType({**own, "draft": DEFAULT_DRAFT if own["draft"] is None else own["draft"]})

    @property
    def names_draft(self) -> bool:
        """Whether it was loaded with a drafter, or with options of one."""
        return self._defaults["draft"] is not None or not self._defaults.keys() <= _REQUEST_FIELDS

    def kind(self, draft: Any) -> tuple[Any, dict[str, Any]]:
        """The class of a drafter's name, and the options that are written in it; what is no name as it is.

        Raises OptionError for an unknown name.
        """
        if not isinstance(draft, str):
            return draft, {}
        if draft not in self._kinds:
            self._kinds[draft] = drafters.resolve(draft)
        return self._kinds[draft]

    def encode(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Any,
    ) -> list[int]:
        """The token ids of a prompt as `generate` makes them, chat template included; options as in `Request`."""
        if unknown := set(options) - _REQUEST_FIELDS:
            raise OptionError(
                f"a prompt has no option {min(unknown)!r}; it has {', '.join(sorted(_REQUEST_FIELDS))}"
            )
        return encoded(prompt, messages, Request(**options), self.tokenizer, self.config)


def _added(made: list[Drafter], drafter: Drafter) -> Drafter:
    made.append(drafter)
    return drafter


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

    def say(self, text: str | Message, **options: Any) -> Stream:
        """Answer a ``text`` of the user, or another message: the result of a tool, say.

        Question and answer join ``messages`` when the stream ends, or is closed half-way. One answer at a time:
        they share the cache. Errors in the arguments are raised here, and add nothing.
        """
        if self._last is not None and not self._last.is_ended:
            raise PromptError("the last answer is still being written; finish it, or close its stream")
        if not isinstance(text, Mapping) and (not isinstance(text, str) or not text.strip()):
            raise PromptError("the message is empty; give some text")
        asked: Message = text if isinstance(text, Mapping) else {"role": "user", "content": text}

        def answered(answer: str) -> None:
            self.messages += [asked, {"role": "assistant", "content": answer}]

        stream = self._engine.stream(messages=[*self.messages, asked], **options)
        stream.attach(self._memory, answered)
        self._last = stream
        return stream
