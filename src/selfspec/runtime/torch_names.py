"""What a user names, as torch has it: a precision, a device, files of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from selfspec.errors import CorruptModelError, OptionError
from selfspec.model.config import DTYPE_BYTES
from selfspec.model.reading import one_line
from selfspec.runtime.torch_quantised import BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


def dtype_of(name: str) -> torch.dtype:
    """The precision of this name. Raises OptionError for another."""
    if name not in DTYPE_BYTES:
        raise OptionError(f"dtype is {name!r}; it must be one of {', '.join((*DTYPE_BYTES, *BITS))}")
    found: torch.dtype = getattr(torch, name)
    return found


def device_of(name: str) -> torch.device:
    """The device of this name, or the best one for auto. Raises OptionError for one that cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.empty(0, device=name).device
        if device.type == "meta":
            raise RuntimeError("it holds no data")
        return device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise OptionError(f"device {name!r} cannot be used here ({reason}); use auto, cpu or cuda") from error


def read_tensors(files: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Tensors of safetensors files, by name."""
    from safetensors import SafetensorError, safe_open

    weights: dict[str, Tensor] = {}
    for path in sorted(set(files.values())):
        try:
            with safe_open(path, framework="pt", device=str(device)) as reader:
                for name in (n for n, p in files.items() if p == path):
                    weights[name] = reader.get_tensor(name).to(dtype)
        except SafetensorError as error:
            raise CorruptModelError(
                f"{str(path)!r} cannot be read ({one_line(error)}); download it again"
            ) from error
    return weights
