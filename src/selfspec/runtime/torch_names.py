"""What a user calls a precision or a device, as torch has it."""

from __future__ import annotations

import torch

from selfspec.errors import OptionError
from selfspec.model.config import DTYPE_BYTES
from selfspec.runtime.torch_quantised import BITS


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
