"""What the cost model expects of a GPU, and how what `gpu.py` measured compares with that and with the aims."""

from __future__ import annotations

from typing import Any

from gpu_models import SHAPES, Shape

from selfspec.control import best_gamma, draft_cost, expected_tokens, shared_share

GPUS = {"H200": 4.8e12, "RTX 4090": 1.01e12}  # bytes a second, by their data sheets
REACHED = 0.82  # share of it that a plain token gets
ROWS = 1.03  # v(8): the rows are there in plain decoding, too; what is left is the head's and attention's
HOST = 0.15e-3  # seconds of a round in which the device waits for the host
LONGEST = 7  # drafts that are verified in 8 rows

# What a run on a GPU must show (docs/gpu.md).
LEAST_SHARE, LARGE = 0.80, ("3B", "8B")
MOST_OVERHEAD = 0.03
MOST_ERROR = 0.05  # of S from the formula


# -- predictions ------------------------------------------------------------------------------------------


def predictions() -> dict[str, Any]:
    """The assumptions, and for each GPU and shape what follows from them."""
    return {
        "assumptions": {
            "dtype": "bfloat16",
            "bytes_per_second": GPUS,
            "share_of_them_in_a_pass": REACHED,
            "v8": ROWS,
            "host_seconds_per_round": HOST,
            "most_gamma": LONGEST,
        },
        "expected": {
            gpu: {name: of_shape(shape, bandwidth) for name, shape in SHAPES.items()}
            for gpu, bandwidth in GPUS.items()
        },
    }


def of_shape(shape: Shape, bandwidth: float) -> dict[str, Any]:
    """Plain decoding, a look-up of α 0.8, and an exit at L/4, on a GPU of so many bytes a second."""
    config = shape.config("bfloat16")
    head = config.head_parameters
    layers = config.num_layers * config.active_layer_parameters
    share, k = head / (layers + head), shape.layers // 4
    whole = 2 * (layers + head) / (REACHED * bandwidth)
    made: dict[str, Any] = {
        "pass_seconds": whole,
        "plain_tokens_per_second": 1.0 / (whole + HOST),
        "loop_overhead": HOST / (whole + HOST),
        "c": draft_cost(shape.layers, k, share),
        "f": shared_share(shape.layers, k, share),
    }
    made["look_up"] = {"alpha": 0.8, "gamma": LONGEST, "S": gain(made, 0.8, LONGEST)}
    made["exits"] = []
    for alpha in (0.6, 0.7, 0.8, 0.9):
        gamma = best_gamma(alpha, made["c"], ROWS, made["f"], LONGEST)
        made["exits"].append({"alpha": alpha, "gamma": gamma, "S": gain(made, alpha, gamma, is_exit=True)})
    return made


def gain(made: dict[str, Any], alpha: float, gamma: int, is_exit: bool = False) -> float:
    """S with ``gamma``; the host's share is counted in both rounds."""
    whole, c, f = made["pass_seconds"], made["c"] if is_exit else 0.0, made["f"] if is_exit else 0.0
    drafted = whole * (gamma * c + f + (1.0 - f) * (ROWS if gamma else 1.0)) + HOST
    return expected_tokens(alpha, gamma) * (whole + HOST) / drafted


def table() -> str:
    """The predictions as the table of docs/gpu.md."""
    lines = ["| GPU | model | plain ms | plain tokens/s | look-up, α 0.8 | exit L/4: α 0.6 | 0.7 | 0.8 | 0.9 |"]
    lines.append("|" + "---|" * 9)
    for gpu, shapes in predictions()["expected"].items():
        for name, made in shapes.items():
            rate = made["plain_tokens_per_second"]
            cells = [gpu, name, f"{1e3 / rate:.2f}", f"{rate:.0f}"]
            cells += [f"{one['S']:.2f} (γ {one['gamma']})" for one in (made["look_up"], *made["exits"])]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# -- comparison -------------------------------------------------------------------------------------------


def compared(results: dict[str, Any], shapes: dict[str, Shape]) -> dict[str, Any]:
    """Measured beside predicted for each shape that ran.

    A GPU whose data sheet is not above is predicted from the bandwidth that its copy reached.
    """
    device, copied = results["machine"]["device"], results["machine"]["bandwidth"]
    known = [gpu for gpu in GPUS if gpu in device]
    bandwidth = GPUS[known[0]] if known else copied
    found: dict[str, Any] = {"bandwidth of": f"data sheet, {known[0]}" if known else "the copy"}
    for name, measured in _measured(results, shapes):
        expected = of_shape(shapes[name], bandwidth)
        rows = [_beside(key, measured[key], expected[key]) for key in ("plain_tokens_per_second", "loop_overhead")]
        rows += [_beside("v(8)", measured["v"][8], ROWS)]
        rows += [_beside(key, measured[key], expected[key]) for key in ("c", "f")]
        rows += [
            _beside(
                f"S of {one['draft']}, γ {one['gamma']}",
                one["S"],
                gain(expected, one["alpha"], one["gamma"], one["draft"].startswith("exit")),
            )
            for one in measured["speedups"]
        ]
        found[name] = rows
    return found


def aims(results: dict[str, Any], shapes: dict[str, Shape], is_gpu: bool) -> list[dict[str, Any]]:
    """Each aim with what was found; figures are judged on a GPU only (``met`` is None elsewhere)."""
    found = []
    for what, value in results.get("equality", {}).items():
        if what.endswith(("texts equal", "rows bit-identical")):
            found.append(_judged(what, value, value))
        elif what.endswith("waits in a round"):
            found.append(_judged(f"no {what}", value or "none", not value))
    for name in ("equality", *shapes):
        if failed := results.get(name, {}).get("failed"):
            found.append(_judged(f"{name}: ran to its end", failed, False))
    for name, measured in _measured(results, shapes):
        equal = all(one["equal"] for one in measured["speedups"])
        found.append(_judged(f"{name}: texts of all drafts equal", equal, equal))
        share, overhead = measured["share_of_bandwidth_limit"], measured["loop_overhead"]
        if name in LARGE:
            met = share >= LEAST_SHARE if is_gpu else None
            found.append(_judged(f"{name}: plain of the bandwidth limit >= {LEAST_SHARE}", share, met))
        met = overhead < MOST_OVERHEAD if is_gpu else None
        found.append(_judged(f"{name}: loop overhead < {MOST_OVERHEAD}", overhead, met))
        for one in measured["speedups"]:
            error = one["S"] / one["formula"] - 1.0
            what = f"{name}: S of {one['draft']}, γ {one['gamma']}, off the formula by <= {MOST_ERROR}"
            found.append(_judged(what, error, abs(error) <= MOST_ERROR if is_gpu else None))
    return found


def _measured(results: dict[str, Any], shapes: dict[str, Shape]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, results[name]) for name in shapes if "failed" not in results.get(name, {"failed": ""})]


def _beside(what: str, measured: float, predicted: float) -> dict[str, Any]:
    return {"what": what, "measured": measured, "predicted": predicted, "ratio": measured / predicted}


def _judged(aim: str, found: Any, met: bool | None) -> dict[str, Any]:
    return {"aim": aim, "found": found, "met": met}
