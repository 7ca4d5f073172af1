"""Trained heads in the native core: as torch computes them, row by row, and refused where they cannot be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from doubles import tiny_core, tiny_runtime
from random_heads import random_facts, random_head

from selfspec.runtime.cpu_attached import CpuAttached
from selfspec.runtime.packing import native, pack
from selfspec.types import Rows

TOKENS = [5, 6, 7, 8, 9, 10, 11, 12]
ROWS = Rows.of([0] * 5 + [1] * 3, [0, 1, 2, 3, 4, 0, 1, 2])
HEADS = {
    "none": random_facts("exit_head", "none"),
    "linear": random_facts("exit_head", "linear"),
    "attention": random_facts("exit_head", "attention"),
    "layer": random_facts("exit_head", "layer", head_dim=10, num_heads=2, num_kv_heads=1, intermediate_size=40),
    "eagle": random_facts("eagle", rope_theta=500.0, eps=1e-3),
    "eagle of odd widths": random_facts("eagle", hidden_size=56, head_dim=6, intermediate_size=70),
}


def states(facts):
    return np.random.default_rng(0).normal(size=(len(TOKENS), facts.hidden_size * len(facts.taps)))


def ran(attached, given, rows=ROWS, tokens=TOKENS, cache=None):
    """G of rows in a new cache, or in this one."""
    if cache is None and attached.facts.attends:
        cache = attached.new_cache(2, 8)
    return attached.run(attached.features(given), tokens, rows, cache)


@pytest.mark.parametrize("name", HEADS)
def test_the_core_computes_what_torch_does(name):
    """Guards parity, in float32 within 2e-4; and that no row depends on others, in any kind of weights."""
    facts, vocabulary = HEADS[name], [0, 3, 7, 20, 60]
    head, sizes = (
        random_head(facts, vocabulary=vocabulary, own_head="odd" in name),
        {"hidden_size": facts.hidden_size},
    )
    given = states(facts)
    target = tiny_core("fp32", **sizes)
    wanted, made = tiny_runtime(**sizes).attach(head), target.attach(head, 32)
    want, got = ran(wanted, torch.from_numpy(given)), ran(made, given)
    assert np.abs(want.numpy() - got).max() < 2e-4
    assert np.abs(wanted.logits(want) - made.logits(got)).max() < 2e-4
    assert [one.token for one in wanted.best(want)] == [one.token for one in made.best(got)]
    for bits in (32, 16, 8, 4):
        made = target.attach(head, bits)
        together, cache = ran(made, given), made.new_cache(2, 8) if facts.attends else None
        alone = [ran(made, given[i : i + 1], ROWS.take([i]), TOKENS[i : i + 1], cache) for i in range(len(TOKENS))]
        np.testing.assert_array_equal(together, np.concatenate(alone))
        assert np.abs(together - got).max() < {32: 1e-6, 16: 0.3, 8: 0.3, 4: 5.0}[bits]


def test_every_kernel_set_gives_the_same_bits():
    facts = HEADS["eagle of odd widths"]
    head, given = random_head(facts, vocabulary=[0, 3, 7]), states(facts)
    target, found = tiny_core("int8", hidden_size=56), []
    for kernels in native().kernel_sets():
        target.kernels = kernels
        made = target.attach(head)
        found.append(made.logits(ran(made, given)))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize(
    ("kind", "bits", "held"),
    [
        ("int8", None, "int8"),
        ("int4", None, "int4"),
        ("fp32", None, "int8"),
        ("bf16", 32, "bf16"),
        ("bf16", 8, "int8"),
        ("int8", 4, "int4"),
    ],
)
def test_the_lm_head_is_the_targets_in_no_more_bits_than_asked(kind, bits, held, monkeypatch):
    """Guards memory, and a second rounding: rows of a head that has few bits are taken over as they are."""
    target, given = tiny_core(kind), {}
    original = CpuAttached._set
    monkeypatch.setattr(
        CpuAttached,
        "_set",
        lambda self, role, m, **more: given.update({role: m}) or original(self, role, m, **more),
    )
    rows = np.asarray([3, 9, 17, 60])
    attached = target.attach(random_head(random_facts("exit_head", "linear"), vocabulary=rows), bits)
    assert given["head"].kind == held
    if held == kind:
        np.testing.assert_array_equal(given["head"].unpack(), target._head.unpack(rows))
    assert attached.weight_bytes == given["head"].data.nbytes + given["transform"].data.nbytes
    whole = target.attach(random_head(random_facts("exit_head", "linear")), bits)
    assert (whole.weight_bytes == given["transform"].data.nbytes) == (held == kind)  # the target's own, held once


def test_the_core_refuses_what_would_read_elsewhere():
    """Guards memory: no shape that a caller may get wrong reaches a pass."""
    model = native().Model((1, 32, 48, 4, 2, 8, 5), 1e-5, [], native().kernel_sets()[0], 1)
    x, out = np.zeros((2, 32), np.float32), np.zeros((2, 32), np.float32)
    rows, cache = (np.zeros(2, np.int64), np.arange(2), None), native().Cache([0], 1, 8, 2, 8, "float32")
    plan = (np.asarray([0]), np.asarray([-1]), np.empty((0, 2, 32), np.float32), 0)

    def matrix(n, k):
        return pack(np.ones((n, k), np.float32), "fp32").matrix()

    with pytest.raises(ValueError, match="transform"):
        model.transformed(x, out, False)
    model.set_linear(0, "transform", matrix(32, 96), None)
    for wrong in (np.zeros((2, 95), np.float32), np.zeros((3, 96), np.float32)):
        with pytest.raises(ValueError, match="transform"):
            model.transformed(wrong, out, False)
    with pytest.raises(ValueError, match="another shape"):
        model.set_linear(0, "transform", matrix(31, 96), None)
    with pytest.raises(ValueError, match="another shape"):
        model.set_linear(0, "q", matrix(32, 64), None)  # before it is said that it reads two
    model.set_linear(0, "q", matrix(32, 32), None)
    model.set_facts(0, {"beside": True})
    for role, size in (("k", 16), ("v", 16)):
        model.set_linear(0, role, matrix(size, 64), None)
    model.set_linear(0, "o", matrix(32, 32), None)
    with pytest.raises(ValueError, match="lacks weights"):
        model.run(out, plan, rows, cache, x)
    model.set_linear(0, "q", matrix(32, 64), None)
    with pytest.raises(ValueError, match="second vector"):
        model.run(out, plan, rows, cache)
    for wrong in (np.zeros((1, 32), np.float32), np.zeros((2, 31), np.float32)):
        with pytest.raises(ValueError, match="second vector"):
            model.run(out, plan, rows, cache, wrong)
    model.run(out, plan, rows, cache, x)
    model.set_linear(0, "transform", matrix(32, 4096), None)  # more room than the passes before needed
    model.transformed(np.ones((2, 4096), np.float32), out, False)
    assert (out == 4096).all()
