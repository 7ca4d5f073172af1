"""Where and how much `gpu.py` measures, and one text through the real loop. To be imported before selfspec."""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

if importlib.util.find_spec("selfspec") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))


def _without_extras() -> None:
    """Stand in for two small packages of the base, which torch and transformers do not bring."""
    if importlib.util.find_spec("array_api_compat") is None:
        module: Any = types.ModuleType("array_api_compat")
        own: Any = types.SimpleNamespace(
            **{name: getattr(torch, name) for name in dir(torch) if not name.startswith("_")}
        )
        own.astype = lambda array, dtype: array.to(dtype)
        own.asarray = lambda array, copy=None, device=None: torch.as_tensor(array, device=device).clone()
        module.array_namespace = lambda *_: own
        module.device = lambda array: array.device
        module.to_device = lambda array, device: array.to(device)
        sys.modules["array_api_compat"] = module
    if importlib.util.find_spec("platformdirs") is None:
        os.environ.setdefault("SELFSPEC_CACHE", str(Path.home() / ".cache" / "selfspec"))


_without_extras()

from gpu_models import Shape  # noqa: E402

from selfspec.context import Context, Text  # noqa: E402
from selfspec.decode import decode  # noqa: E402
from selfspec.drafters.early_exit import EarlyExit, EarlyExitOptions  # noqa: E402
from selfspec.drafters.scripted import Scripted, ScriptedOptions  # noqa: E402
from selfspec.runtime.torch import TorchRuntime  # noqa: E402
from selfspec.sampling import Chance  # noqa: E402
from selfspec.types import Sampling  # noqa: E402


@dataclass
class Bench:
    """How much is measured, and where."""

    device: torch.device
    shapes: dict[str, Shape]
    prompt: int
    new: int
    repeats: int
    backend: Any
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], Any], times: int = 0) -> float:
        """Seconds of one call, the median of groups that end in one wait: what the device needs, not the host."""
        work()
        work()
        found = []
        for _ in range(3):
            self.wait()
            started = time.perf_counter()
            for _ in range(times or self.repeats):
                work()
            self.wait()
            found.append((time.perf_counter() - started) / (times or self.repeats))
        return statistics.median(found)

    def compiled(self, runtime: TorchRuntime) -> Any:
        made: Any = runtime.compiled("on", lambda line: print(f"    {line}", flush=True))
        made.compiler.backend = self.backend
        return made

    def text(self, limit: int, sampling: Sampling, vocabulary: int) -> Text:
        prompt = [(37 * i + 11) % vocabulary for i in range(self.prompt)]
        return Text(0, 0, prompt, self.prompt + limit, sampling, Chance(1), lambda _: False)

    def generate(self, runtime: Any, drafter: Any, sampling: Sampling | None = None) -> Run:
        """One text through the real loop."""
        text = self.text(self.new, sampling or Sampling(), runtime.config.vocab_size)
        cache = runtime.new_cache(1, self.prompt + self.new)
        rounds = [r for r in decode(Context(runtime, cache), [text], drafter) if r.index]
        tokens = [len(round_.commits[0].tokens) for round_ in rounds]
        # the first rounds are captured, the last one may be cut
        inner = rounds[len(rounds) // 4 : -1] or rounds
        own = tokens[len(rounds) // 4 : -1] or tokens
        return Run(
            text.tokens[self.prompt :], sum(own) / (inner[-1].ended - inner[0].started), statistics.fmean(own)
        )


@dataclass(frozen=True)
class Run:
    """Tokens of a text, tokens per second of its rounds, tokens per round."""

    tokens: list[int]
    rate: float
    per_round: float


def early_exit(config: Any, k: int, gamma: int) -> EarlyExit:
    """An exit at ``k``."""
    return EarlyExit(EarlyExitOptions(exit_layer=k, gamma=gamma), config)


def scripted(config: Any, text: list[int], alpha: float, gamma: int) -> Scripted:
    """Right with probability ``alpha`` at each place, the same places in every run."""

    def script(tokens: Any, most: int) -> list[int]:
        at = len(tokens)
        return [
            token if (at + i) * 0.6180339887 % 1.0 < alpha else (token + 1) % config.vocab_size
            for i, token in enumerate(text[at : at + most])
        ]

    return Scripted(ScriptedOptions(script=script, gamma=gamma), config)
