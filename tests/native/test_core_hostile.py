"""Files and calls that lie: one clear error, and nothing is read outside of what was given.

The sanitizers of native/sanitize.sh see what a test cannot: a read of the wrong bytes that happens not to fail.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from native_models import ODD, chain, core

import selfspec
from selfspec.errors import CorruptModelError
from selfspec.model.cache import MANIFEST, checksum
from selfspec.runtime.cpu import CpuRuntime
from selfspec.runtime.packed import _read, find_packed
from selfspec.runtime.packing import native
from selfspec.types import LayerPlan, Rows

TOKENS = [5, 17, 3, 200]


# -- packed files -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def entry(tiny, tmp_path_factory):
    """(the folder of a packed model, its config); tests copy it."""
    model = find_packed(tiny)
    memory = next(w.data for w in model.weights.values() if hasattr(w, "data") and hasattr(w, "rows")).base
    while not isinstance(memory, np.memmap):
        memory = memory.base
    return Path(memory.filename).parent, model.config


@pytest.fixture
def copy(entry, tmp_path):
    folder = tmp_path / "entry"
    shutil.copytree(entry[0], folder)
    return folder


def told(folder, config):
    """The one line that a bad entry is refused with."""
    with pytest.raises(CorruptModelError) as caught:
        _read(folder, config)
    assert "\n" not in str(caught.value)
    assert "delete that folder" in str(caught.value)
    return str(caught.value)


def edit(folder, change):
    head = json.loads((folder / "packed.json").read_text())
    change(head)
    (folder / "packed.json").write_text(json.dumps(head))


MATRIX, VECTOR = "model.layers.1.mlp.up_proj.weight", "model.layers.2.input_layernorm.weight"
LIES = {
    "begins before": (MATRIX, {"begin": -64}, "outside"),
    "begins behind": (MATRIX, {"begin": 2**40}, "outside"),
    "begins far behind": (MATRIX, {"begin": 2**63}, "outside"),
    "ends behind": (VECTOR, {"begin": "last"}, "outside"),
    "is not aligned": (MATRIX, {"begin": 4}, "no multiple"),
    "begins at a fraction": (MATRIX, {"begin": 64.0}, "another"),
    "begins at true": (MATRIX, {"begin": True}, "another"),
    "is larger": (MATRIX, {"bytes": 2**40}, "another"),
    "is smaller": (VECTOR, {"bytes": 4}, "another"),
    "has a negative size": (MATRIX, {"bytes": -1}, "another"),
    "has another shape": (MATRIX, {"shape": [2**20, 2**20]}, "another"),
    "has a shape of one": (MATRIX, {"shape": [64]}, "another"),
    "has no shape": (MATRIX, {"shape": None}, "NoneType"),
    "is of another kind": (MATRIX, {"kind": "int4"}, "another"),
    "is of no kind": (MATRIX, {"kind": ""}, "another"),
    "is of an unknown kind": (MATRIX, {"kind": "int2"}, "another"),
    "is of a list of kinds": (MATRIX, {"kind": ["fp32"]}, "another"),
    "is a vector of a kind": (VECTOR, {"kind": "fp32"}, "another"),
    "overlaps": (MATRIX, {"begin": "other"}, "overlap"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_packed_file_that_lies_is_refused(entry, copy, lie):
    """Guards every field that says where weights are."""
    name, changes, reason = LIES[lie]
    size = (copy / "packed.bin").stat().st_size

    def change(head):
        places = {"last": size // 64 * 64, "other": head["weights"]["model.layers.0.mlp.up_proj.weight"]["begin"]}
        begin = changes.get("begin")
        head["weights"][name] |= changes | ({"begin": places[begin]} if begin in places else {})

    edit(copy, change)
    assert reason in told(copy, entry[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head["weights"].pop(MATRIX),
        lambda head: head["weights"].update(more=head["weights"][MATRIX]),
        lambda head: head.update(layout=99),
        lambda head: head.update(weights=[]),
        lambda head: head.pop("rounding"),
        lambda head: head.update(rounding="small"),
        lambda head: head["weights"].update({MATRIX: 5}),
    ],
)
def test_a_packed_file_of_another_form_is_refused(entry, copy, change):
    """Guards parts that are missing or too many, and values that are no objects."""
    edit(copy, change)
    told(copy, entry[1])


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, "\ufeff{}", "9" * 5000])
def test_a_head_that_is_no_head_is_refused(entry, copy, text):
    """Guards what stands before the fields."""
    (copy / "packed.json").write_text(text, encoding="utf-8")
    told(copy, entry[1])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_truncated_map_is_refused(entry, copy, share):
    """Guards the end of the mapping: a page behind the file is no memory."""
    with (copy / "packed.bin").open("r+b") as file:
        file.truncate(int(share * (copy / "packed.bin").stat().st_size))
    told(copy, entry[1])


def lengths(weights):
    """The bytes of every weight."""
    return {key: memoryview(getattr(weight, "data", weight)).nbytes for key, weight in weights.items()}


def test_random_damage_of_the_head_is_refused_or_harmless(entry, copy):
    """Guards what nobody thought of: 300 heads with a few changed characters are refused, or say as much."""
    folder, config = entry
    sound, random, refused = (folder / "packed.json").read_bytes(), np.random.default_rng(0), []
    for _ in range(300):
        text = bytearray(sound)
        for _ in range(int(random.integers(1, 4))):
            text[int(random.integers(len(text)))] = int(random.choice(list(b'0123456789-"[]{}:,. ex\xff')))
        (copy / "packed.json").write_bytes(bytes(text))
        try:
            found, rounding = _read(copy, config)
        except CorruptModelError as error:
            refused.append(str(error))
            continue
        assert isinstance(rounding, float)
        assert lengths(found) == lengths(_read(folder, config)[0])
    assert len(refused) > 100
    assert not any("\n" in line for line in refused)


def test_a_wrong_checksum_is_packed_anew(tiny, tmp_path, monkeypatch):
    """Guards the weights themselves: a flipped bit is found before anything runs, and mended."""
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path / "cache"))
    first, notes = find_packed(tiny), []
    (file,) = (tmp_path / "cache").glob("*/packed.bin")
    good = checksum(file.parent, file.name)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    again = find_packed(tiny, notify=notes.append)
    assert any("wrong checksum" in note for note in notes)
    assert first.fingerprint == again.fingerprint == good


def test_a_hostile_entry_with_a_sound_checksum_is_one_line(tiny, tmp_path, monkeypatch):
    """Guards the whole way: who writes the cache folder can write its checksums too."""
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path / "cache"))
    find_packed(tiny)
    (file,) = (tmp_path / "cache").glob("*/packed.json")
    edit(file.parent, lambda head: head["weights"][MATRIX].update(begin=2**40))
    from selfspec.model.cache import _described

    manifest = json.loads((file.parent / MANIFEST).read_text())
    manifest["files"]["packed.json"] = _described(file)
    (file.parent / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CorruptModelError, match=r"mlp.up_proj.weight lies outside of packed.bin"):
        selfspec.load(tiny)


# -- calls ------------------------------------------------------------------------------------------------

SIZES = (-(2**63), -(2**31), -1, 0, 1, 2, 3, 16, 2**24, 2**31 - 1, 2**31, 2**62)
ERRORS = (ValueError, IndexError, TypeError, MemoryError, OverflowError)


def attempts(count, seed):
    return [np.random.default_rng([seed, i]) for i in range(count)]


def one_of(random, values):
    return values[int(random.integers(len(values)))]


def test_matrices_of_any_sizes_and_bytes_are_refused_or_sound():
    """Guards the first border: sizes that lie about their bytes."""
    made = 0
    for random in attempts(400, 1):
        kind = one_of(random, ["fp32", "bf16", "fp16", "int8", "int4", "int2", ""])
        rows, columns = (one_of(random, SIZES) for _ in range(2))
        data = np.zeros(int(one_of(random, [0, 1, 320, 544, 1024, 2048])), np.uint8)
        try:
            matrix = native().Matrix(kind, rows, columns, data)
        except ERRORS:
            continue
        made += 1
        native().unpack_rows(matrix, np.array([rows - 1]), np.empty((1, columns), np.float32))
    assert made


def test_caches_of_any_sizes_are_refused_or_sound():
    """Guards sizes whose product does not fit into any type."""
    made = 0
    for random in attempts(400, 2):
        rings = [one_of(random, SIZES) for _ in range(int(random.integers(0, 3)))]
        try:
            cache = native().Cache(
                rings, *(one_of(random, SIZES) for _ in range(4)), one_of(random, ["float16", "int9"])
            )
        except ERRORS:
            continue
        made += 1
        assert 0 <= cache.nbytes < 2**50
    assert made


def test_rows_and_plans_of_any_numbers_are_refused_or_sound():
    """Guards the call that runs: whatever numbers it gets, a sound call after it gives the same bits."""
    runtime = core("int8")
    want, cache, ran = chain(runtime, TOKENS), runtime.new_cache(2, 20), 0
    for random in attempts(600, 3):
        count = int(random.integers(1, 4))

        def numbers(size, random=random):
            usual = random.integers(0, 6, size)
            return np.where(random.random(size) < 0.05, one_of(random, SIZES[:-1]), usual).astype(np.int64)

        steps = numbers(int(random.integers(0, 4)))
        taps = np.where(random.random(len(steps)) < 0.9, -1, numbers(len(steps)))
        lineage = numbers((count, 3)) if random.random() < 0.5 else None
        if lineage is not None and random.random() < 0.5:
            lineage[:, 0] = 0
        slots = np.minimum(numbers(count), 1) if random.random() < 0.8 else numbers(count)
        tapped = np.empty((int(random.integers(0, 2)), count, ODD.hidden_size), np.float32)
        plan = (steps, taps, tapped, int(one_of(random, [0, 0, 0, 1, -1])))
        try:
            hidden = np.ones((count, ODD.hidden_size), np.float32)
            runtime._model.run(hidden, plan, (slots, np.minimum(numbers(count), 2), lineage), cache.native)
        except ERRORS:
            continue
        ran += 1
    assert 30 < ran < 570
    assert np.array_equal(chain(runtime, TOKENS), want)


def test_facts_and_weights_that_do_not_fit_are_refused():
    """Guards the model itself: every shape is checked against the sizes before it is used."""
    model, config = core()._model, ODD
    for facts in (
        {"rope": 1}, {"rope": -2}, {"window": -1}, {"experts": 2}, {"experts": -1}, {"per_token": 3},
        {"activation": "swish"}, {"activation": "clipped"}, {"weighting": "some"}, {"colour": 1}, {"scale": "big"},
    ):  # fmt: skip
        with pytest.raises((ValueError, RuntimeError, TypeError)):
            model.set_facts(0, facts)
    with pytest.raises(IndexError):
        model.set_facts(3, {})
    with pytest.raises(ValueError, match="a sink for each head"):
        model.set_sinks(0, np.zeros(config.num_heads + 1, np.float32))
    for role, length in (("attention", 71), ("q", 21), ("final", 1)):
        with pytest.raises(ValueError, match="a weight for each number"):
            model.set_norm(0, role, np.ones(length, np.float32), None)
    with pytest.raises(ValueError, match="a bias for each number"):
        model.set_norm(0, "attention", np.ones(72, np.float32), np.ones(73, np.float32))
    with pytest.raises(IndexError, match="no such expert"):
        model.set_expert(0, 0, "gate", core()._head.matrix(), None)
    with pytest.raises(ValueError, match="no role"):
        model.set_linear(0, "nose", core()._head.matrix(), None)


def test_a_cache_of_another_model_is_refused():
    """Guards offsets that are computed from the cache's own sizes."""
    runtime, hidden = core(), np.ones((1, ODD.hidden_size), np.float32)
    for other in ([0] * 2, 1, 8, 2, 20), ([0] * 3, 1, 8, 1, 20), ([0] * 3, 1, 8, 2, 21):
        with pytest.raises(ValueError, match="a cache of another model"):
            _run(runtime, hidden, native().Cache(*other, "float32"))
    _run(runtime, hidden, native().Cache([0] * 3, 1, 8, 2, 20, "float16"))
    with pytest.raises(ValueError, match="a longer one"):
        native().Cache([0], 1, 8, 2, 20, "float16").copy_from(native().Cache([0], 1, 80, 2, 20, "float16"))


def test_two_rows_in_one_cell_are_refused():
    """Guards the cache: the thread sanitizer saw two members write one cell, and the last one won."""
    runtime = core()
    cache, hidden = runtime.new_cache(2, 8), np.ones((2, ODD.hidden_size), np.float32)
    plan = (np.zeros(1, np.int64), np.full(1, -1, np.int64), np.empty((0, 2, ODD.hidden_size), np.float32), 0)
    for slots, positions, lineage in (
        ([0, 0], [3, 3], None), ([1, 1], [2, 3], np.asarray([[2, 5], [2, 5]])),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="a cell of its own for each row"):
            runtime._model.run(hidden, plan, (np.asarray(slots), np.asarray(positions), lineage), cache.native)
    runtime._model.run(hidden, plan, (np.asarray([0, 1]), np.asarray([3, 3]), None), cache.native)


def _run(runtime, hidden, cache):
    one, none = np.zeros(1, np.int64), np.full(1, -1, np.int64)
    runtime._model.run(hidden, (one, none, np.empty((0, 1, 72), np.float32), 0), (one, one, None), cache)


def test_a_model_without_its_weights_does_not_run():
    """Guards a null pointer: a layer that lacks weights says so."""
    from selfspec.runtime.cpu_model import _facts

    rope = ODD.layer(0).rope
    bare = native().Model((3, 72, 100, 6, 2, 20, 203), 1e-5, [(np.ones(10, np.float32), False, 1.0)], "portable", 1)
    bare.set_facts(0, _facts(ODD, ODD.layer(0), [rope]))
    runtime = CpuRuntime(ODD, core()._weights)
    runtime._model = bare
    with pytest.raises(ValueError, match="lacks weights"):
        runtime.run(np.ones((1, 72), np.float32), LayerPlan.full(3), Rows.of([0], [0]), runtime.new_cache(1, 8))
    with pytest.raises(ValueError, match="no head"):
        runtime.logits(np.ones((1, 72), np.float32))
