"""What runs compiled: functions of torch, one for each shape, captured as CUDA graphs where there is a GPU.

Compiled is by layer, captured by pass. Layers of one kind are one function of their tensors, so a model of 32 equal
layers compiles two of them, and a plan that skips others than the last one compiles nothing. What a pass launches
is captured, over the memory of its cache, when it is run a second time.
"""

from __future__ import annotations

import os
import time
import types
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, MutableMapping

    from torch import Tensor

FOLDER = "TORCHINDUCTOR_CACHE_DIR"  # torch's own name for where it keeps what it has compiled


class Captured(NamedTuple):
    """A CUDA graph, and the tensors that it reads and leaves."""

    graph: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Compiler:
    """Compiled functions by key; ``seconds`` is what making ``count`` of them has taken.

    Parameters
    ----------
    backend
        Of `torch.compile`; None runs everything as it is, in the same shapes.
    is_required
        Whether what cannot be compiled is an error; else it runs as it is, ``failure`` says why, and ``notify`` is
        told.
    """

    def __init__(
        self,
        backend: Any = "inductor",
        is_required: bool = True,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.backend, self.notify = backend, notify
        self.failure = self.graph_failure = ""
        self.count, self.captured, self.seconds = 0, 0, 0.0
        self._is_required = is_required
        self._made: dict[Hashable, Callable[..., Any]] = {}
        self._pool: Any = None
        self._depth = 0
        self._replaying = Lock()

    def __call__(self, key: Hashable, function: Callable[..., Any], *args: Any) -> Any:
        """``function(*args)``, compiled for this ``key``: one function, and one set of shapes and kinds."""
        if self.failure or self.backend is None:
            return function(*args)
        if key in self._made:
            return self._made[key](*args)
        started = time.perf_counter()
        made = torch.compile(
            _copied(function, f"{function.__name__}_{self.count}"), backend=self.backend, fullgraph=True
        )
        try:
            result = made(*args)
        except Exception as error:
            if not _is_of_compiler(error):
                raise
            self._fail(error)
            return function(*args)
        self._made[key] = made
        self.count += 1
        self.seconds += time.perf_counter() - started
        return result

    def _fail(self, error: Exception) -> None:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:2]) or type(error).__name__
        if self._is_required:
            raise OptionError(
                f"compile is on, but torch cannot compile here ({reason}); use compile off"
            ) from error
        self.failure = reason
        self.notify(f"torch cannot compile here ({reason}); running as it is, which is slower")

    @contextmanager
    def first_calls(self) -> Iterator[None]:
        """Say what the compilations inside have taken, if there were any."""
        count, seconds = self.count, self.seconds
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if self.count > count and not self._depth and self.backend == "inductor":
            made, took = self.count - count, self.seconds - seconds
            self.notify(
                f"compiled {made} functions in {took:.1f} s; kept in {os.environ.get(FOLDER, 'the cache of torch')}"
            )

    def graphed(
        self,
        graphs: MutableMapping[Hashable, Captured | None],
        key: Hashable,
        body: Callable[..., tuple[Tensor, ...]],
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        """``body(*inputs)``: on a GPU as it is the first time, which compiles, and from the second on as a graph.

        ``body`` launches the same work each time, reads tensors of one shape and place, and may be run again.
        """
        if inputs[0].device.type != "cuda" or self.graph_failure:
            return body(*inputs)
        if key not in graphs:
            graphs[key] = None
            return body(*inputs)
        found = graphs[key]
        if found is None:
            try:
                found = graphs[key] = self._capture(body, inputs)
            except RuntimeError as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                self.graph_failure = str(error).splitlines()[0]
                self.notify(f"CUDA graphs cannot be captured here ({self.graph_failure}); running without them")
                return body(*inputs)
        with self._replaying:  # graphs share their memory: nothing may come between a replay and its copies
            for stands, given in zip(found.inputs, inputs, strict=True):
                stands.copy_(given)
            found.graph.replay()
            return tuple(out.clone() for out in found.outputs)

    def _capture(self, body: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]) -> Captured:
        stand = tuple(given.clone() for given in inputs)
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            body(*stand)  # what libraries allocate when they are first called on a stream must be there
        torch.cuda.current_stream().wait_stream(aside)
        self._pool = torch.cuda.graph_pool_handle() if self._pool is None else self._pool
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = body(*stand)
        self.captured += 1
        return Captured(graph, stand, outputs)


def keep_compiled_in(folder: str | os.PathLike[str]) -> None:
    """Let torch keep what it compiles there, unless its own variable already says where."""
    os.environ.setdefault(FOLDER, os.fspath(folder))


def _copied(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same function with code of its own: torch counts compilations, and limits them, by code."""
    code = function.__code__.replace(co_name=name)
    made = types.FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _is_of_compiler(error: Exception) -> bool:
    """Whether torch could not compile, rather than what was compiled could not run."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton"))
