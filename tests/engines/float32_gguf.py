"""The same GGUF model with all its numbers in float32.

llama.cpp rounds activations for quantised weights, in another way for one row than for several, so that a draft may
change a word at a near-tie; in float32 its rows differ in the last bits only.
"""

from __future__ import annotations

import gguf

from selfspec.model.gguf_file import contents, open_reader


def write_float32(source, out):
    """Write ``out``, a copy of the file ``source``."""
    reader = open_reader(source)
    architecture = contents(reader.fields["general.architecture"])
    writer = gguf.GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, contents(field), field.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
