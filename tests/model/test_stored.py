"""Every block type that is read, against the library's own values, in slabs of any size."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from selfspec.model import stored
from selfspec.model.stored import BLOCK_TYPES, Stored


@pytest.mark.parametrize("kind", BLOCK_TYPES)
@pytest.mark.parametrize("slab", [4096, 7])
def test_values_of_blocks(kind, slab, monkeypatch):
    """Guards the slabs: the last one is shorter, and a stack of experts has one dimension more."""
    monkeypatch.setattr(stored, "_SLAB", slab)
    block = GGMLQuantizationType[kind.upper()]
    values, size = GGML_QUANT_SIZES[block]
    rows = np.random.default_rng(0).integers(0, 256, (3, 5, 2 * size), np.uint8)
    with np.errstate(all="ignore"):  # bytes at random are scales at random, infinite ones too
        got = Stored(kind, (3, 5, 2 * values), rows, "w").dense()
        for found, given in zip(got, rows, strict=True):
            np.testing.assert_array_equal(found, dequantize(given, block))


def test_a_view_of_rows_is_read_in_its_order():
    """Guards rows that were put into another order and not copied."""
    rows = np.random.default_rng(0).integers(0, 100, (6, 34), np.uint8)
    turned = rows[::-2]
    np.testing.assert_array_equal(
        Stored("q8_0", (3, 32), turned, "w").dense(), dequantize(turned.copy(), GGMLQuantizationType.Q8_0)
    )
