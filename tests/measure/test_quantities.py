"""Quantities as people write them: bytes, tokens, weights."""

from __future__ import annotations

import pytest

from selfspec.errors import OptionError
from selfspec.measure.quantities import bytes_of, tokens_of, weights_of


def test_quantities():
    """Guards units: GB is not GiB, k of a context is 1,024, and nothing is guessed."""
    assert [bytes_of("m", text) for text in ("24GB", "24GiB", "1.5kB", "7B", 9)] == [
        24 * 10**9,
        24 << 30,
        1500,
        7,
        9,
    ]
    assert [tokens_of("c", text) for text in ("32k", "4096", 10)] == [32768, 4096, 10]
    assert [weights_of("d", text) for text in ("0.5B", "135M")] == [5 * 10**8, 135 * 10**6]
    wrong = (
        "",
        "7",
        "GB",
        "24G",
        "24gb",
        "24 GB",
        "-1GB",
        "+1GB",
        "1e9",
        "nan",
        "0x10",
        "٣GB",
        "1,5GB",
        "1GB ",
        True,
        1.5,
        None,
    )
    for text in (*wrong, "9" * 30 + "TB"):
        with pytest.raises(OptionError, match=r"m is .*; it must be a number of bytes with its unit"):
            bytes_of("m", text)
    for text in ("0", "32K", "32kB", "0.00001k", ""):
        with pytest.raises(OptionError, match="such as 4096 or 32k"):
            tokens_of("c", text)
