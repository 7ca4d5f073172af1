"""The GGUF files that llama.cpp is measured with: the same model in F32, F16, Q8_0 and Q4_0.

    python bench/make_gguf.py SOURCE.gguf FOLDER

Run it with a Python that has llama-cpp-python, whose own quantiser writes them. `selfspec info --json` names the
file of the embedded model. Blocks of fewer bits are widened first, which adds no error; Q4_0 of a Q4_1 file is a
second rounding, so compare its speed, not its words.
"""

from __future__ import annotations

import sys
from pathlib import Path

import llama_cpp

TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "Q4_0": 2}  # llama_ftype


def main(source: str, folder: str) -> None:
    """Write what is not there yet."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, kind in TYPES.items():
        path = Path(folder, f"{name}.gguf")
        if path.exists():
            continue
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize, params.pure = kind, True, True
        part = path.with_suffix(".part")
        if llama_cpp.llama_model_quantize(source.encode(), str(part).encode(), params):
            raise SystemExit(f"llama.cpp could not write {name}")
        part.rename(path)
        print(path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
