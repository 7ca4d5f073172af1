"""Bytes, operations and bandwidth of passes: what a row cannot be faster than, and how near it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.runtime.states import plain_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selfspec.runtime.base import Runtime

_CELLS = 1024  # caches are padded; over this many cells it does not show


def kv_bytes_per_token(runtime: Runtime) -> float:
    """Bytes of keys and values that a row reads for every token before it."""
    cells = min(_CELLS, runtime.config.context_length)
    cache = runtime.new_cache(1, cells)
    return (cache.nbytes - cache.state_bytes) / cells


def roofline(ceiling: Mapping[str, float], runtime: Runtime, one_row: Mapping[int, float]) -> list[dict[str, Any]]:
    """For each context of ``one_row`` (context -> seconds of a pass over one row): the bounds, and what is reached.

    A pass reads all weights, the keys and values of its context, and the states of recurrent layers once; each row
    multiplies and adds them once. ``arithmetic_bound_rows`` are the rows from which on arithmetic takes longer than
    reading. The bandwidth and the speed are those of `selfspec.measure.passes.measure_ceiling`.
    """
    config, kv = runtime.config, kv_bytes_per_token(runtime)
    fixed = ceiling["weight_bytes"] + plain_bytes(config, runtime.value_bytes)
    attending = config.num_layers - len(config.recurrences)
    found = []
    for context, seconds in one_row.items():
        read = fixed + context * kv
        scores = 4 * context * config.num_heads * config.head_dim * attending  # queries, then values
        operations = ceiling["operations"] + scores
        memory, arithmetic = read / ceiling["bytes_per_second"], operations / ceiling["operations_per_second"]
        found.append(
            {
                "context": context,
                "weight_bytes": ceiling["weight_bytes"],
                "kv_bytes": round(context * kv),
                "operations_per_row": operations,
                "memory_seconds": memory,
                "arithmetic_seconds_per_row": arithmetic,
                "arithmetic_bound_rows": memory / arithmetic,
                "measured_seconds": seconds,
                "bytes_per_second_reached": read / seconds,
                "share_of_bound": max(memory, arithmetic) / seconds,
            }
        )
    return found
