"""From what a user names to an engine: which runtime runs it, and in which precision."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.drafters.base import Loaded
from selfspec.engine import Engine
from selfspec.errors import OptionError, RuntimeMissingError, UnsupportedModelError
from selfspec.model import EMBEDDED, Tokenizer, config_of, find_checkpoint
from selfspec.model.load import packed_folder
from selfspec.model.packed_folder import only_native
from selfspec.model.reading import quoted
from selfspec.tuned import find_tuned

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec.model.config import ModelConfig

RUNTIMES = ("auto", "torch", "cpu")
_TORCH_ONLY = ("dtype", "device", "compile")
_CPU_ONLY = ("bits", "threads", "kv")
PLACING = (*_TORCH_ONLY, *_CPU_ONLY)


def load(
    model: str | os.PathLike[str] | Any = EMBEDDED,
    *,
    tokenizer: Any = None,
    runtime: str = "auto",
    tuned: bool = True,
    notify: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    **options: Any,
) -> Engine:
    """Load a model and choose how it runs and drafts.

    Parameters
    ----------
    model
        ``"smollm2-135m"`` (the embedded model), ``"gemma3-270m"``, a Hugging Face folder, a ``.gguf`` file, the
        ``model`` folder of a bundle, a hub id, or a transformers model object, whose parameter tensors are then
        shared, not copied.
    tokenizer
        Only with a model object: its fast tokenizer. Without one, prompts are token ids.
    runtime
        "cpu" (the native core), "torch", or "auto": torch for a model object, where ``dtype`` or ``device``
        is given, and where torch has a GPU; else the native core, if it is installed and has the operators of
        the model's family; else torch, and ``notify`` is told why.
    tuned
        Draft as `selfspec tune` found for this model on this machine, if it did and nothing here says otherwise: no
        ``draft``, and no option of one. Off ignores it.
    notify
        Called with a line when something takes long or was repaired (conversion, damaged cache), or does not fit
        (what was tuned elsewhere).
    progress
        Called with the weights done so far and in all, when they are converted or packed.
    options
        For the native core ``bits`` (4, 8, 16 or 32 a weight; None keeps what is stored), ``threads`` and ``kv``
        (keys and values in "float16", the default, "bfloat16", "float32" or "int8"); for torch ``dtype``
        ("float64", "float32", "bfloat16", "float16"; "int8" or "int4" for the matrices, by torchao; None keeps what
        is stored), ``device`` ("auto", "cpu", "cuda", ...) and ``compile`` ("auto", which is on where the device is
        a CUDA GPU, "on" or "off"; for model objects, too). Further ``draft`` and that drafter's options (``gamma``,
        ``exit_layer``, ...), and defaults for every generation (``max_new_tokens``, ``temperature``, ...).

    Raises
    ------
    SelfspecError
        See ``selfspec.errors``.
    """
    placed = {name: options.pop(name, None) for name in PLACING}
    told = (notify, progress)
    if not hasattr(model, "state_dict"):
        if tokenizer is not None:
            raise OptionError("tokenizer is only for a model object; a checkpoint brings its own")
        opened = _open(model, runtime, placed, told)
    else:
        opened = _shared(model, tokenizer, runtime, placed, notify)
        model = None  # its tensors are not read a second time
    engine = Engine(*opened, _opener(model, told), notify, **options)
    if tuned and not engine.names_draft:
        engine.tuned = find_tuned(engine)
    return engine


def _opener(model: Any, told: tuple[Any, Any]) -> Callable[..., Loaded]:
    """What opens a model for an engine: another one by name, or for None its own, ``model``, a second time."""

    def opener(other: str | os.PathLike[str] | None, *, runtime: str = "auto", **placement: Any) -> Loaded:
        if (found := model if other is None else other) is None:
            raise OptionError("a model object has no files to open a second time; load its folder instead")
        return _open(found, runtime, dict.fromkeys(PLACING) | placement, told)

    return opener


def _shared(
    model: Any, tokenizer: Any, runtime: str, placed: dict[str, Any], notify: Callable[[str], None]
) -> Loaded:
    """A model object, with its own tensors."""
    given = [name for name, value in placed.items() if value is not None and name != "compile"]
    _choose(runtime, given, True)
    if given:
        raise OptionError(f"{given[0]} is not for a model object; convert the model itself with .to(...)")
    own = None if tokenizer is None else Tokenizer.of(tokenizer)
    shared = _torch().of(model, () if own is None else own.eos_token_ids)
    shared = shared.compiled(placed["compile"] or "auto", notify)
    if own is not None:
        own.limit = shared.config.vocab_size
    return Loaded(shared, own, type(model).__name__, "")


def _open(model: Any, runtime: str, placed: dict[str, Any], told: tuple[Any, Any]) -> Loaded:
    """A model that is named, ready to run; ``told`` are those of notify and progress."""
    given = [name for name, value in placed.items() if value is not None]
    notify, progress = told
    chosen, missing = runtime_for(model, runtime, given)
    if missing:
        notify(f"the native core has no {missing}; running in torch")
    if chosen == "cpu":
        return _on_cpu(model, placed, told)
    checkpoint = find_checkpoint(model, notify=notify, progress=progress)
    made = _torch().load(
        checkpoint.config,
        checkpoint.weight_files,
        placed["dtype"],
        placed["device"] or "auto",
        checkpoint.module_files,
    )
    made = made.compiled(placed["compile"] or "auto", notify)
    return Loaded(made, checkpoint.tokenizer, checkpoint.name, checkpoint.fingerprint)


def _bound(model: Any, runtime: str, given: list[str]) -> str:
    """The runtime that was asked for; for a folder of packed weights, which only the native core reads, "cpu"."""
    found = packed_folder(model)
    if found is None or runtime not in RUNTIMES:
        return runtime
    if runtime == "torch" or not set(given).isdisjoint(_TORCH_ONLY):
        raise only_native(found)
    if not has_native():
        raise RuntimeMissingError(
            f"{quoted(found)} holds weights packed for the native core, which is not built in this installation: "
            "install selfspec from a wheel, or with a C++20 compiler"
        )
    return "cpu"


def _on_cpu(model: Any, placed: dict[str, Any], told: tuple[Any, Any]) -> Loaded:
    from selfspec.runtime.cpu import CpuRuntime
    from selfspec.runtime.packed import find_packed
    from selfspec.runtime.selftest import self_test

    self_test()
    packed = find_packed(model, placed["bits"], notify=told[0], progress=told[1])
    made = CpuRuntime(packed.config, packed.held(), placed["threads"], placed["kv"])
    return Loaded(made, packed.tokenizer, packed.name, packed.fingerprint)


def _lacking(model: str | os.PathLike[str]) -> str:
    """What the native core lacks for this checkpoint, in words; "" if it can run it."""
    if model == EMBEDDED:  # of the Llama type; reading the head of its file would be a sixth of the start
        return ""
    from selfspec.runtime.cpu_model import lacking

    return lacking(config_of(model))


def runtime_for(model: str | os.PathLike[str], runtime: str, given: list[str]) -> tuple[str, str]:
    """Which runtime `load` takes for a model, where the options ``given`` are not None; no weights are read.

    The second text is what the native core lacks, where torch stands in for it, else "". Raises OptionError and
    UnsupportedModelError as `load`.
    """
    chosen = _choose(_bound(model, runtime, given), given, False)
    missing = _lacking(model) if chosen == "cpu" else ""
    if missing and (runtime == "cpu" or given):
        without = f" without {' and '.join(given)}" if given else ""
        raise UnsupportedModelError(
            f"the native core has no {missing}, which {Path(model).name} needs; use runtime torch{without}"
        )
    return ("torch", missing) if missing else (chosen, "")


def default_runtime(config: ModelConfig) -> str:
    """The name of the runtime that would run this model here by default."""
    from selfspec.runtime.cpu_model import lacking

    chosen = _choose("auto", [], False)
    return "torch" if lacking(config) else chosen


def default_runs_on(config: ModelConfig) -> str:
    """What would run this model here by default: the native core with its kernels and threads, or torch."""
    from selfspec.runtime.cpu import described
    from selfspec.runtime.cpu_model import lacking

    if _choose("auto", [], False) == "torch":
        return "torch"
    missing = lacking(config)
    return f"torch (the native core has no {missing})" if missing else described()


def has_native() -> bool:
    """Whether the native core was built with this package."""
    return find_spec("selfspec._native") is not None


def _choose(runtime: str, given: list[str], is_object: bool) -> str:
    """The runtime for these options; raises where they contradict each other or nothing is installed."""
    if runtime not in RUNTIMES:
        raise OptionError(f"runtime is {runtime!r}; it must be one of {', '.join(RUNTIMES)}")
    if is_object and runtime == "cpu":
        raise OptionError("a model object runs in torch; give the native core its folder instead")
    asked = {name: ("torch" if name in _TORCH_ONLY else "cpu") for name in given}
    wanted = {runtime} - {"auto"} or set(asked.values())
    for name, owner in asked.items():
        if wanted != {owner}:
            others = [n for n in asked if asked[n] != owner] or [f"runtime {runtime}"]
            raise OptionError(f"{name} is for the {owner} runtime and cannot go with {others[0]}; leave one out")
    if wanted:
        chosen = wanted.pop()
    elif is_object or has_gpu() or not has_native():
        chosen = "torch"
    else:
        chosen = "cpu"
    return chosen


def shows_gpu() -> bool:
    """Whether there may be a GPU: its driver shows, or the system does not tell."""
    return sys.platform != "linux" or os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd")


def has_gpu() -> bool:
    """Whether torch can use a GPU; where no driver shows, torch is not imported to ask."""
    if not shows_gpu() or find_spec("torch") is None:
        return False
    return bool(_torch().has_gpu())


def _torch() -> Any:
    try:
        from selfspec.runtime.torch import TorchRuntime
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise RuntimeMissingError(_missing()) from error
    return TorchRuntime


def _missing() -> str:
    if has_native():
        return "torch is missing; install it with: pip install torch, or use runtime cpu"
    return "no runtime is installed: neither the native core nor torch; install torch with: pip install torch"
