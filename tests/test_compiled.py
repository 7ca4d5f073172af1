"""The torch runtime in passes of few shapes: what a GPU runs, here on a CPU, without CUDA graphs."""

from __future__ import annotations

import gc
from itertools import count

import numpy as np
import pytest
import torch
from doubles import run, tiny_runtime, tiny_static
from torch.utils._python_dispatch import TorchDispatchMode

import selfspec
from selfspec.errors import OptionError, RuntimeMissingError
from selfspec.model.config import Layer, Rope
from selfspec.runtime.torch_compiled import lacking
from selfspec.runtime.torch_compiler import Compiler
from selfspec.runtime.torch_laws import block_verdict, picked, probabilities
from selfspec.runtime.torch_rounds import TorchRounds
from selfspec.runtime.torch_static import WIDTHS, Grid
from selfspec.sampling import distribution
from selfspec.types import Dense, Draft, LayerPlan, Prefix, Rows, Sampling, SubLayer
from selfspec.verify import verify_block

PROMPTS = [[5, 17, 3, 3, 42, 5, 17], [1], [9, 9, 9, 9, 2], list(range(20))]
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.8),
    Sampling(temperature=1.3, top_k=20),
    Sampling(temperature=1.0, top_k=30, top_p=0.9, min_p=0.01),
]
DRAFTS = {
    "plain": {},
    "early_exit": {"exit_layer": 2, "gamma": 4},
    "layer_skip": {"skip": "attention 2,4 mlp 3", "gamma": 3},
    "ngram": {"gamma": 5, "adaptive": False},
}


def tokens(runtime, prompts, draft="plain", options=None, **how):
    return [text.tokens for text in run(runtime, prompts, draft, options, **how)]


# -- laws and verdicts ------------------------------------------------------------------------------------


class Numbers:
    """Dice that use given numbers, one after the other."""

    def __init__(self, numbers):
        self.numbers = list(numbers)

    def accept(self, probability):
        return self.numbers.pop(0) < probability

    def pick(self, law):
        return law.pick(self.numbers.pop(0))


def laws(random, rows, size):
    """Laws with tokens that have no mass, some of them certain."""
    made = random.dirichlet(np.full(size, 0.4), rows) * (random.random((rows, size)) < 0.7)
    made[np.arange(rows), random.integers(size, size=rows)] += random.choice([1e-3, 1.0, 1e9], size=rows)
    return made / made.sum(-1, keepdims=True)


def test_a_block_is_judged_as_on_the_host():
    """Guards `block_verdict`: the same verdict from the same numbers, as many of them, in every case."""
    random, accepted = np.random.default_rng(1), set()
    for case in range(600):
        gamma, size = int(random.integers(1, 7)), 5
        drafted = laws(random, gamma, size)
        target = laws(random, gamma + 1, size)
        if case % 3:  # often near the draft, so that much is accepted
            target[:-1] = 0.7 * drafted + 0.3 * target[:-1]
        if case % 5 == 0:
            target[:-1] = drafted
        chosen = [int(random.choice(size, p=law)) for law in drafted]
        uniforms = random.random(gamma + 2)
        dice = Numbers(uniforms)
        draft = Draft(tuple(chosen), tuple(map(Dense, drafted)))
        verdict = verify_block(draft, [Dense(law) for law in target].__getitem__, dice)
        parts = [torch.from_numpy(part) for part in (target, drafted, np.asarray(chosen), uniforms)]
        found, bonus, used = block_verdict(*parts).tolist()
        assert (found, bonus) == (verdict.accepted, verdict.bonus)
        assert used + 1 == len(uniforms) - len(dice.numbers)
        accepted.add((gamma, found))
    assert accepted == {(gamma, held) for gamma in range(1, 7) for held in range(gamma + 1)}


@pytest.mark.parametrize("sampling", SAMPLINGS[1:], ids=str)
def test_rows_have_the_laws_of_one_row(sampling):
    """Guards cuts without a branch: the probabilities and picks of `sampling.distribution`."""
    random = np.random.default_rng(2)
    logits = random.normal(size=(40, 300)).astype(np.float32) * 4
    logits[::3] = logits[::3].round()  # ties at the cuts
    found = probabilities(torch.from_numpy(logits), sampling).numpy()
    uniforms = random.random(40)
    chosen = picked(torch.from_numpy(found), torch.from_numpy(uniforms)).tolist()
    for row, uniform, law, token in zip(logits, uniforms, found, chosen, strict=True):
        expected = distribution(row, sampling, Prefix([], 0))
        assert np.abs(expected.probs - law).max() < 1e-14
        assert ((expected.probs > 0) == (law > 0)).all()
        assert expected.pick(uniform) == token


# -- passes -----------------------------------------------------------------------------------------------

ROPE = Rope(theta=500.0)
FACTS = {
    "plain": {},
    "windows": {"layers": tuple(Layer(rope=ROPE, window=window) for window in (4, None, 9, 4, None))},
    "caps": {"layers": (Layer(rope=ROPE, soft_cap=3.0, scale=0.3, window=6),) * 5},
    "no rope": {"layers": (Layer(rope=None), *(Layer(rope=ROPE),) * 4)},
    "interleaved": {"layers": (Layer(rope=Rope(theta=500.0, interleaved=True)),) * 5},
}


def filled(runtime, slots, length=90):
    """A cache whose slots hold texts of several lengths, prefilled as they are."""
    cache = runtime.new_cache(slots, length)
    full = LayerPlan.full(runtime.config.num_layers)
    for slot in range(slots):
        text = [(7 * i + slot) % 61 for i in range(30 + 5 * slot)]
        rows = Rows.of([slot] * len(text), range(len(text)))
        runtime.run(runtime.embed(text, rows.positions), full, rows, cache)
    return cache


@pytest.mark.parametrize("facts", FACTS)
@pytest.mark.parametrize("slots", [1, 3])
def test_a_pass_on_a_grid_is_the_pass(facts, slots):
    """Guards masks, rings that come round, scratch cells and lineages: the states of the runtime as it is."""
    config = FACTS[facts]
    plain, static = tiny_runtime(**config), tiny_static(**config)
    plain.most_rows = static.most_rows = 12  # rings have window + 12 cells, and come round
    caches = filled(plain, slots), filled(static, slots)
    full, taps = LayerPlan.full(5), (SubLayer(1), SubLayer(3))
    chain = Rows.of(
        [slot for slot in range(slots) for _ in range(3 + slot)],
        [30 + 5 * slot + i for slot in range(slots) for i in range(3 + slot)],
    )
    tree = Rows.trees(
        [slot for slot in range(slots) for _ in range(5)],
        [30 + 5 * slot + i for slot in range(slots) for i in range(5)],
        [parent if parent < 0 else parent + 5 * slot for slot in range(slots) for parent in (-1, 0, 0, 1, 3)],
    )
    for rows in (tree, chain):
        entering = plain.embed([(3 * i) % 61 for i in range(len(rows))], rows.positions)
        expected, wanted = plain.run(entering, full, rows, caches[0], taps)
        found, tapped = static.run(entering, full, rows, caches[1], taps)
        assert (expected - found).abs().max() < 1e-12
        assert all((wanted[tap] - tapped[tap]).abs().max() < 1e-12 for tap in taps)
        assert np.abs(plain.logits(expected) - static.logits(found)).max() < 1e-11


def test_a_row_is_the_same_whatever_rows_run_beside_it():
    """Guards row invariance at a row count: alone, among others, and after others, to the last bit."""
    runtime = tiny_static(dtype="float32")
    full = LayerPlan.full(5)
    rows = Rows.of([0] * 6, range(30, 36))
    entering = runtime.embed([3, 1, 4, 1, 5, 9], rows.positions)
    together, _ = runtime.run(entering, full, rows, filled(runtime, 1))
    cache = filled(runtime, 1)
    alone = [runtime.run(entering[i : i + 1], full, rows.take([i]), cache)[0] for i in range(6)]
    assert torch.equal(torch.cat(alone), together)
    assert np.array_equal(runtime.logits(together[2:3])[0], runtime.logits(together)[2])


def test_rows_take_few_shapes():
    """Guards the grid: every number of rows has a width, and passes that are too large have none."""
    for rows in range(1, WIDTHS[-1] + 1):
        grid = Grid.of(Rows.of([0] * rows, range(rows)), 1)
        assert grid.width == min(width for width in WIDTHS if width >= rows)
    assert Grid.of(Rows.of([0] * 65, range(65)), 1) is None
    assert Grid.of(Rows.of([8] * 64, range(64)), 9) is None


# -- rounds on the device ---------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [1, 4])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_texts_are_those_of_the_host_and_come_once_a_round(texts, sampling, monkeypatch):
    """Guards rounds on the device: the same tokens, sampled too, from the same numbers; one transfer a round."""
    fetches = count()
    fetched = TorchRounds.fetched
    monkeypatch.setattr(TorchRounds, "fetched", lambda self, numbers: (next(fetches), fetched(self, numbers))[1])
    plain, static = tiny_runtime(), tiny_static()
    for draft, options in DRAFTS.items():
        rounds = count()
        before = next(fetches)
        how = {"new_tokens": 30, "sampling": sampling, "seed": 4}
        expected = tokens(plain, PROMPTS[:texts], draft, options, **how)
        found = tokens(
            static, PROMPTS[:texts], draft, options, each_round=lambda *_, rounds=rounds: next(rounds), **how
        )
        assert found == expected
        assert next(fetches) - before - 1 == next(rounds) - 1  # none for the prefill


class NoWaiting(TorchDispatchMode):
    """Whatever needs numbers on the host, or shapes that follow from numbers, raises while it is ``armed``."""

    KERNELS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique", "is_nonzero")
    METHODS = ("tolist", "item", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__")

    def __init__(self, monkeypatch):
        super().__init__()
        self.armed = False
        for name in self.METHODS:
            monkeypatch.setattr(torch.Tensor, name, self.guarded(name, getattr(torch.Tensor, name)))

    def guarded(self, name, method):
        def refused(tensor, *args, **how):
            assert not self.armed, f"{name} waits for the device"
            return method(tensor, *args, **how)

        return refused

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if self.armed:
            assert not name.startswith(self.KERNELS), f"{name} waits for the device"
            indices = args[1] if name in {"index", "index_put_"} else ()
            assert all(index is None or index.dtype != torch.bool for index in indices), (
                "a mask waits for the device"
            )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[3]], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", ["plain", "early_exit", "ngram"])
def test_nothing_in_a_round_waits_for_the_device(draft, sampling, monkeypatch):
    """Guards rounds without synchronisation, from the first draft step to the one transfer."""
    static, waiting, fetched = tiny_static(), NoWaiting(monkeypatch), TorchRounds.fetched

    def allowed(self, numbers):
        waiting.armed = False
        found = fetched(self, numbers)
        waiting.armed = True
        return found

    def begun(_context, _texts, _round):
        waiting.armed = True

    monkeypatch.setattr(TorchRounds, "fetched", allowed)
    # what is a NumPy view on a CPU stays a tensor on a GPU, and reading a tensor is what is looked for
    monkeypatch.setattr(type(static), "logits", lambda self, hidden: self.scored(hidden))
    with waiting:
        texts = run(static, PROMPTS, draft, DRAFTS[draft], sampling=sampling, each_round=begun)
        assert waiting.armed
        for wait in (lambda: torch.ones(3).max().item(), lambda: torch.ones(3)[torch.ones(3) > 0]):
            with pytest.raises(AssertionError, match="waits"):  # the guard guards
                wait()
        waiting.armed = False
    assert all(len(text.tokens) == text.limit for text in texts)


# -- caches -----------------------------------------------------------------------------------------------


def test_memory_of_a_cache_goes_to_the_next_one():
    """Guards graphs that are captured once: a cache of the same shape has the same addresses, and is empty."""
    runtime = tiny_static()
    cache = filled(runtime, 1, length=90)
    assert cache.nbytes == runtime.cache_bytes(1, 90)
    address, other = cache.keys[0].data_ptr(), runtime.new_cache(1, 90)
    assert other.keys[0].data_ptr() != address
    longer = cache.longer(100)
    assert longer.keys[0].data_ptr() == address  # there was room
    longest = longer.longer(300)
    assert torch.equal(longest.keys[2][:, :30], longer.keys[2][:, :30])
    del cache, longer
    gc.collect()
    again = runtime.new_cache(1, 80)
    assert again.keys[0].data_ptr() == address
    assert not again.keys[0].any()


# -- compiling --------------------------------------------------------------------------------------------


def test_nothing_is_compiled_after_the_first_rounds():
    """Guards against recompilation: 200 rounds of every γ up to 9 and of many lengths compile nothing new."""
    compiled = count()

    def backend(graph, _inputs):
        next(compiled)
        return graph.forward

    runtime = tiny_static(backend=backend, context_length=400, num_layers=2)

    def rounds_of(length, gamma):
        rounds = count()
        options = {"exit_layer": 1, "gamma": gamma}
        prompt = [[(5 * i) % 61 for i in range(length)]]
        run(runtime, prompt, "early_exit", options, new_tokens=40, each_round=lambda *_: next(rounds))
        return next(rounds)

    for length, gamma in ((3, 2), (40, 9)):
        rounds_of(length, gamma)
    first, rounds = next(compiled), 0
    assert first == runtime.compiler.count >= 9  # three widths
    lengths = [(20, 1), (150, 4), (7, 7), (260, 9), (90, 2), (33, 5), (300, 3), (61, 8), (12, 6), (5, 1)]
    for length, gamma in lengths:
        rounds += rounds_of(length, gamma)
    assert rounds >= 200
    assert next(compiled) == first + 1
    assert not runtime.compiler.failure


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, of what inductor imports
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_compiled_code_gives_the_text(dtype):
    """Guards what inductor makes of the passes: greedy, sampled and tree drafts, alone and together."""
    runtime, plain = tiny_static("inductor", dtype=dtype), tiny_runtime(dtype=dtype)
    for prompts in (PROMPTS[:1], PROMPTS[:2]):
        for sampling in (SAMPLINGS[0], SAMPLINGS[3]):
            options = {"exit_layer": 2, "gamma": 4}
            expected = tokens(plain if dtype == "float64" else runtime, prompts, sampling=sampling)
            if sampling.is_greedy:
                assert tokens(runtime, prompts, "early_exit", options, sampling=sampling) == expected
                assert tokens(runtime, prompts, "early_exit", {**options, "siblings": 2}) == expected
            assert tokens(runtime, prompts, sampling=sampling) == expected
    assert runtime.compiler.count > 4
    assert not runtime.compiler.failure


def test_what_cannot_be_compiled_runs_as_it_is_or_is_an_error():
    """Guards machines without a compiler: auto says so once and goes on, on is an error with a way out."""

    def broken(_graph, _inputs):
        raise RuntimeError("no compiler here")

    expected = tokens(tiny_runtime(), PROMPTS[:1])
    said = []
    runtime = tiny_static(broken)
    runtime.compiler = Compiler(broken, is_required=False, notify=said.append)
    assert tokens(runtime, PROMPTS[:1], "early_exit", {"exit_layer": 2}) == expected
    assert len(said) == 1
    assert "no compiler here" in said[0]
    runtime.compiler = Compiler(broken)
    with pytest.raises(OptionError, match="use compile off"):
        tokens(runtime, PROMPTS[:1])


# -- options ----------------------------------------------------------------------------------------------


def test_auto_compiles_on_a_gpu_only():
    """Guards the default on a CPU, which stays what it was."""
    runtime = tiny_runtime()
    assert runtime.compiled("auto") is runtime
    assert runtime.compiled("off") is runtime
    assert runtime.compiled("on").runs_on == "torch, compiled"
    runtime.module = dict  # what reads a checkpoint's multi-token module goes with it
    assert runtime.compiled("on").module is dict
    with pytest.raises(OptionError, match="one of auto, on, off"):
        runtime.compiled("yes")


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile": "maybe"}, "auto, on, off"),
        ({"dtype": "int4"}, "needs a CUDA GPU"),
        ({"dtype": "int3"}, "int8, int4"),
    ],
)
def test_options_that_cannot_be(options, message):
    """Guards one clear line for each."""
    with pytest.raises(OptionError, match=message):
        selfspec.load(device="cpu", **options)


@pytest.mark.embedded
def test_torchao_is_asked_for_by_name(monkeypatch):
    """Guards the install line."""
    import sys

    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(RuntimeMissingError, match=r"pip install 'selfspec\[quant\]'"):
        selfspec.load(device="cpu", dtype="int8")


def test_experts_and_states_are_not_compiled():
    """Guards models whose rows the host must look at."""
    from doubles import tiny_hybrid

    runtime = tiny_hybrid("conv")
    assert "recurrent" in lacking(runtime.config)
    assert runtime.compiled("auto") is runtime
    with pytest.raises(OptionError, match="recurrent"):
        runtime.compiled("on")
