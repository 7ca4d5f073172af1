"""The table of losslessness: every drafter on every runtime must give plain decoding's text, in every cell.

A drafter joins with a line in DRAFTERS, a runtime with a line in RUNTIMES. A cell is one random choice of how
many texts run together, their lengths and ends, γ, the temperature, and what shapes the probabilities.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from constraints import PROCESSORS, settings, some
from doubles import STATES, Host, run, tiny_core, tiny_hybrid, tiny_runtime, tiny_static
from random_heads import fitted_eagle, fitted_medusa, fitted_module, nearly_untrained, random_facts

from selfspec.drafters import create, drafter_class
from selfspec.drafters.adaptive_exit import AdaptiveExit
from selfspec.drafters.base import Drafter, DraftOptions
from selfspec.drafters.early_exit import EarlyExitOptions
from selfspec.drafters.learning_head import LearningHead
from selfspec.drafters.shadow import Choice, ExitControl
from selfspec.drafters.suffix import Suffix, SuffixOptions
from selfspec.learning.learner import Offered
from selfspec.measure.toy import MarkovRuntime
from selfspec.model.head_file import HeadFile, write_head
from selfspec.reference import oracle
from selfspec.runtime.base import Runtime
from selfspec.sampling import Chance
from selfspec.types import Draft, LayerPlan, Rows, Sampling

SIZE = 61  # of the vocabulary
PROMPTS = [[5, 17, 3, 3, 42, 5, 17], [1], [9, 9, 9, 9, 2], list(range(20))]
PROMPT, NEW = PROMPTS[0], 20  # of tests with one text
MOST = 12  # new tokens of a text of the table
SEED = 3


# -- drafters ---------------------------------------------------------------------------------------------


def script(kind, texts):
    """Drafts of known acceptance: always right, always wrong, right for some tokens only."""

    def right(tokens, gamma):
        text = next((text for text in texts if text[: len(tokens)] == tokens), [])
        return text[len(tokens) : len(tokens) + gamma]

    def wrong(tokens, gamma):
        return [(token + 1) % SIZE for token in right(tokens, gamma)]

    def mixed(tokens, gamma):
        cut = len(tokens) % (gamma + 1)
        return right(tokens, gamma)[:cut] + wrong(tokens, gamma)[cut:]

    return {"right": right, "wrong": wrong, "mixed": mixed}[kind]


class Bush(Drafter):
    """Random trees that hold the right tokens somewhere; with ``exit_layer``, the first rows bring their states."""

    name = "bush"

    def __init__(self, config, texts, *, gamma=4, exit_layer=0, seed=0):
        super().__init__(DraftOptions(gamma=gamma), config)
        self.expected = texts
        self.exit_layer = exit_layer
        self.random = np.random.default_rng(seed)

    def propose(self, context, texts, gammas):
        return [self.tree(context, text, gamma) for text, gamma in zip(texts, gammas, strict=True)]

    def tree(self, context, text, gamma):
        at = len(text.tokens)
        right = self.expected[text.index][at : at + gamma]
        tokens, parents, depths, on_path = [], [], [], [-1]
        for _ in range(self.random.integers(0, min(12, text.room()) + 1)):
            parent = int(self.random.integers(-1, len(tokens)))
            if self.random.random() < 0.5:
                parent = on_path[-1]
            depth = 0 if parent < 0 else depths[parent] + 1
            if depth >= min(gamma, len(right)):
                continue
            holds = parent == on_path[-1] and self.random.random() < 0.8
            tokens.append(right[depth] if holds else int(self.random.integers(61)))
            parents.append(parent)
            depths.append(depth)
            if parent == on_path[-1] and tokens[-1] == right[depth]:
                on_path.append(len(tokens) - 1)
        return self.resumed(context, text, tuple(tokens), tuple(parents))

    def resumed(self, context, text, tokens, parents):
        if not self.exit_layer:
            return Draft(tokens, parents=parents)
        kept = int(self.random.integers(1, len(tokens) + 2))
        start = len(text.tokens) - 1
        rows = Rows.trees(
            [text.slot] * kept, range(start, start + kept), [-1, *(p + 1 for p in parents[: kept - 1])]
        )
        hidden = context.runtime.embed([text.pending, *tokens[: kept - 1]], rows.positions)
        hidden, _ = context.runtime.run(hidden, context.full.span(0, self.exit_layer), rows, context.cache)
        return Draft(tokens, None, hidden, self.exit_layer, parents)


@cache
def host_of(target):
    """An engine for drafters that need other models: one that often agrees, and the target in fewer bits."""
    if isinstance(target, MarkovRuntime):
        return Host(target, {"other": MarkovRuntime(SIZE, num_layers=4, seed=1)})
    light = tiny_core("int4")
    return Host(target, {"other": light, 8: tiny_core("int8"), 4: light})


class Told(Suffix):
    """Look-up in a prediction that is right in most places, and in the text."""

    def __init__(self, config, texts, **options):
        super().__init__(SuffixOptions(**options), config)
        self.expected = texts

    def begin(self, text):
        answer = self.expected[text.index][text.prompt_length :]
        text.prediction = [(token + 1) % SIZE if i % 5 == 3 else token for i, token in enumerate(answer)]
        super().begin(text)


class Whimsical(ExitControl):
    """Learns as it should, and then leaves anywhere, and drafts as much as it may."""

    def __init__(self, seed, *known):
        super().__init__(*known)
        self.random = np.random.default_rng(seed)

    def threshold(self, layer):
        return self.random.choice([0.0, 0.5, 0.9, 0.99, 1.1]) + 0.0 * super().threshold(layer)

    def choose(self, most):
        super().choose(most)
        ladders = list(self._tallies)
        return Choice(ladders[self.random.integers(len(ladders))], most, 1.0)


class Climber(AdaptiveExit):
    """Adaptive exits in the hands of whim: rows of one draft end at any layers."""

    def __init__(self, config, texts, *, seed=0, **options):
        super().__init__(EarlyExitOptions(exit_layer="adaptive", **options), config)
        self.seed = seed

    def control(self):
        return Whimsical(self.seed, self.candidates, self._costs)


class Taught(Host):
    """An engine whose controller knows all kinds of draft, thinks something of each, and takes them for cheap."""

    def __init__(self, target, seed):
        super().__init__(target, {})
        self.random = np.random.default_rng(seed)

    def kept(self, key, make):
        made = make()
        if key[0] != "auto":
            return made
        for record in made.records:
            good = self.random.uniform(0.5, 1.0)
            record.judged(True)
            record.step.learn(100.0 * self.random.uniform(0.0, 0.2), 100.0)
            for depth in range(8):
                for is_right in [True, *(self.random.random(12) < good), True]:
                    record.counts.learn(depth, bool(is_right))
        made.probes.balance = 100.0
        return made


class Erratic:
    """A clock whose steps have nothing to do with the work, so that whoever decides by it decides anything."""

    def __init__(self, seed, costs):
        self.random, self.now = np.random.default_rng(seed), 0.0
        costs.__init__()
        for rows in [1, 4, 8, 16] * 20:
            costs.observe(rows, 1.0 + 0.05 * rows)

    def __call__(self):
        self.now += self.random.exponential()
        return self.now


class Fickle(LearningHead):
    """A head that is another one in every round, as if learning kept whatever it tried; beside it, one learns."""

    name = "fickle"

    def __init__(self, config, host, seed=0, **options):
        given = {"exit_layer": 4, "learn": True, "learn_share": 1.0, "learn_memory": 1} | options
        options = EarlyExitOptions(**given)
        super().__init__(options, config, options.exit_layer)
        self.bind(host)
        self.seed, self.drafted_with = seed, []

    def refine(self, context, texts, gammas, drafts):
        self.exchange(sum(len(text.tokens) for text in texts))
        self.drafted_with.append(self._learner.current)
        return super().refine(context, texts, gammas, drafts)

    def exchange(self, number):
        """Offer another head."""
        worker = self._learner._worker
        random = np.random.default_rng([self.seed, number])
        size = self.config.vocab_size
        tokens = np.flatnonzero(random.random(size) < 0.9) if random.random() < 0.7 else None
        tokens = None if tokens is not None and not len(tokens) else tokens
        head = worker.current.head
        moved = random.normal(0, 0.03, (self.config.hidden_size,) * 2).astype(np.float32)
        head = HeadFile(head.facts, {**head.weights, "transform.weight": moved}, tokens)
        worker.current = Offered(head, worker._attach(head))


# a name, the drafter, and its options but γ; a drafter that must know plain decoding's texts gets them
EARLY_EXITS = {f"early_exit {k}": ("early_exit", {"exit_layer": k}) for k in range(1, 5)}
CHAINS = {
    **EARLY_EXITS,
    "early_exit stop": ("early_exit", {"exit_layer": 3, "confidence": 0.05, "adaptive": True}),
    "early_exit adaptive": (Climber, {"exits": "1,2,4", "shadows": 3}),
    "layer_skip": ("layer_skip", {"skip": "attention 2,4 mlp 3"}),
    "layer_skip from the first": ("layer_skip", {"skip": "attention 0 mlp 2"}),
    "clasp": ("clasp", {"skips": 2, "interval": 3, "confidence": 0.05}),
    "swift": ("swift", {"window": 3, "bayes_interval": 2, "enough": 1.0, "confidence": 0.02}),
    "ngram": ("ngram", {"adaptive": False}),
    "ngram stop": ("ngram", {"confidence": 0.25, "adaptive": False}),
    "suffix": ("suffix", {"adaptive": False}),
    **{kind: ("scripted", {"script": kind}) for kind in ("right", "wrong", "mixed")},
    "draft_model": ("draft_model", {"draft_model": "other"}),
}
TREES = {
    "early_exit comb": ("early_exit", {"exit_layer": 2, "siblings": 1}),
    "early_exit wide comb": ("early_exit", {"exit_layer": 4, "siblings": 3, "confidence": 0.05, "adaptive": True}),
    "early_exit adaptive comb": (Climber, {"siblings": 2, "shadows": 2}),
    "layer_skip comb": ("layer_skip", {"skip": "1-2", "siblings": 2, "confidence": 0.05, "adaptive": True}),
    "conflayers comb": ("conflayers", {"window": 3, "interval": 2, "confidence": 0.02, "siblings": 1}),
    "ngram comb": ("ngram", {"adaptive": False, "siblings": 2}),
    "draft_model comb": ("draft_model", {"draft_model": "other", "siblings": 2, "confidence": 0.05}),
    "suffix told": (Told, {"adaptive": False, "siblings": 2}),
    "bush": (Bush, {}),
    "bush 1": (Bush, {"exit_layer": 1}),
    "bush 3": (Bush, {"exit_layer": 3}),
}
EXITS = ("early_exit:exit_layer=2", "early_exit:exit_layer=4")
CONTROLLERS = {
    "auto": ("auto", {"candidates": ("ngram:adaptive=off", *EXITS)}),
    "auto combs": (
        "auto",
        {"candidates": ("suffix:adaptive=off:siblings=2", "early_exit:exit_layer=4:siblings=1")},
    ),
    "auto drawing": ("auto", {"candidates": EXITS, "repeatable": False, "confidence": 0.03}),
}
DRAFTERS = CHAINS | TREES | CONTROLLERS
HYBRID = (
    "early_exit 2",
    "early_exit stop",
    "early_exit adaptive",
    "layer_skip",
    "ngram",
    "right",
    "wrong",
    "mixed",
)  # chains
ON_A_GRID = (
    "early_exit 2",
    "early_exit stop",
    "early_exit comb",
    "layer_skip",
    "layer_skip from the first",
    "ngram",
    "right",
    "mixed",
    "bush 3",
    "auto",
)  # every way through a round on the device, and past it
LIGHTER = {  # drafters of runtimes that can run the same model in fewer bits
    "quantized": ("quantized", {}),
    "quantized comb": ("quantized", {"draft_bits": 4, "siblings": 2, "confidence": 0.05}),
}
PARTS = {  # drafters of runtimes that can leave out a part of a sub-layer
    "layer_skip heads": ("layer_skip", {"skip": "attention 4 heads 2:0-1,3:3 channels 1:0-15"}),
    "layer_skip channels comb": ("layer_skip", {"skip": "channels 1-3:8-15", "siblings": 1}),
}
FORMS = {
    "none": random_facts("exit_head", "none", taps=(4,)),
    "linear": random_facts("exit_head", "linear", taps=(4,)),
    "attention": random_facts("exit_head", "attention", taps=(3,)),
    "layer": random_facts("exit_head", "layer", taps=(4,)),
    "eagle": random_facts("eagle"),
    "medusa": random_facts("medusa", "blocks"),
}
LACKS = (3, 42)  # tokens that a trimmed vocabulary has not


@cache
def head(form):
    """A trained head for the tiny decoder in a file, right now and then; all but one with a trimmed vocabulary."""
    target, path = tiny_runtime(), Path(tempfile.mkdtemp()) / f"{form}.safetensors"
    if form in ("eagle", "medusa"):
        texts = [prompt + oracle(target, prompt, 2 * MOST, Chance(SEED, 0), Sampling()) for prompt in PROMPTS]
        made = {"eagle": fitted_eagle, "medusa": fitted_medusa}[form](target, FORMS[form], texts)
    else:
        tokens = None if form == "layer" else [token for token in range(SIZE) if token not in LACKS]
        made = nearly_untrained(target, FORMS[form], tokens)
    write_head(path, made)
    return str(path)


@cache
def few_tokens():
    """A file with a draft vocabulary."""
    path = Path(tempfile.mkdtemp()) / "tokens.json"
    path.write_text(json.dumps([token for token in range(SIZE) if token not in LACKS]))
    return str(path)


HEADS = {  # drafters of runtimes that run trained heads: the drafter, the form of its head, and options
    "head none": ("early_exit", "none", {}),
    "trimmed": ("early_exit", None, {"exit_layer": 4}),
    "trimmed comb": ("early_exit", None, {"exit_layer": 3, "siblings": 1, "confidence": 0.02}),
    "head linear": ("early_exit", "linear", {}),
    "head linear comb": ("early_exit", "linear", {"siblings": 1, "confidence": 0.02}),
    "head attention": ("early_exit", "attention", {}),
    "head layer": ("early_exit", "layer", {"confidence": 0.02, "adaptive": True}),
    "eagle": ("eagle", "eagle", {}),
    "eagle comb": ("eagle", "eagle", {"siblings": 2, "confidence": 0.02}),
    "medusa": ("medusa", "medusa", {}),
    "medusa comb": ("medusa", "medusa", {"siblings": 2, "confidence": 0.02, "adaptive": True}),
    "medusa tree": ("medusa", "medusa", {"nodes": 9}),
}
MODULES = {  # drafters of runtimes whose checkpoint brings a multi-token module
    "mtp": {},
    "mtp stop": {"confidence": 0.02, "adaptive": True},
    "mtp comb": {"siblings": 2, "confidence": 0.01},
}
HEAD_CHAINS = {
    name: ("staged", name.split(">"))
    for name in ("ngram>head layer", "head attention>early_exit 4", "mixed>eagle", "ngram>medusa", "ngram>mtp")
}
LEARNING = {  # a head that is exchanged in every round
    "learning head": {},
    "learning head comb": {"siblings": 2, "confidence": 0.02},
}
HEAD_CHAINS |= {"ngram>learning head": ("staged", ["ngram", "learning head"])}
HEAD_CONTROLLERS = {
    "auto heads": ("ngram:adaptive=off", "early_exit", "eagle", "early_exit:exit_layer=2"),
    "auto medusa": ("suffix:adaptive=off", "medusa"),
    "auto mtp": ("ngram:adaptive=off", "mtp", "early_exit:exit_layer=4"),
}
WITH_HEADS = [name for name in (*HEADS, *LEARNING, *HEAD_CHAINS, *HEAD_CONTROLLERS) if "mtp" not in name]
WITH_MODULES = [*MODULES, "ngram>mtp", "auto mtp"]
STAGES = [
    *EARLY_EXITS,
    "early_exit stop",
    "layer_skip",
    "clasp",
    "ngram",
    "suffix",
    "mixed",
    "right",
    "draft_model",
]


def stages(seed):
    """The names of the stages of a random chain; the last one may draft siblings."""
    random = np.random.default_rng([8, seed])
    *early, last = random.choice(STAGES, size=random.choice([2, 2, 3]), replace=False).tolist()
    comb = {"early_exit": "early_exit comb", "ngram": "ngram comb", "draft_model": "draft_model comb"}
    return [*early, comb.get(last.split()[0], last) if random.random() < 0.4 else last]


STAGED = {">".join(stages(seed)): ("staged", stages(seed)) for seed in range(12)}
MIXED = ["early_exit 3>quantized", "quantized>early_exit 4", "ngram>quantized comb"]  # two precisions, one cache
STAGED |= {name: ("staged", name.split(">")) for name in MIXED}
AHEAD = {"overlap": ("overlap", "draft_model"), "overlap ngram": ("overlap", "ngram")}
DETERMINISTIC = {"ngram", "suffix", "scripted", "swift", "conflayers", Bush, Told}  # whatever is sampled
# unless greedy or coupled
SAMPLED = {"auto drawing"} | {
    name for name, (kind, _) in (CHAINS | TREES | LIGHTER | PARTS).items() if kind not in DETERMINISTIC
}
SAMPLED |= {name for name, (_, found) in STAGED.items() if SAMPLED.intersection(found)}
SAMPLED |= {*HEADS, *LEARNING, *HEAD_CHAINS, *MODULES}


def drafter(name, target, texts, gamma, seed=0):
    """What `run` takes: a drafter or its class, and its options."""
    if name in HEADS:
        kind, form, options = HEADS[name]
        own = {"draft_vocabulary": few_tokens()} if form is None else {"head": head(form)}
        return create(_class(kind), target.config, {**own, "gamma": gamma, **options}, Host(target, {})), None
    if name in LEARNING:
        return Fickle(target.config, Host(target, {}), seed, gamma=gamma, **LEARNING[name]), None
    if "mtp" in name and target.module is None:
        said = [p + oracle(target, p, 2 * MOST, Chance(SEED, 0), Sampling()) for p in PROMPTS]
        target.module = partial(fitted_module, target, said)
    if name in MODULES:
        options = {"gamma": gamma, **MODULES[name]}
        return create(_class("mtp"), target.config, options, Host(target, {})), None
    if name in HEAD_CONTROLLERS:
        own = {"eagle": head("eagle"), "early_exit": head("layer"), "medusa": head("medusa")}
        found = [f"{part}:head={own[part]}" if part in own else part for part in HEAD_CONTROLLERS[name]]
        return create(
            _class("auto"), target.config, {"candidates": found, "gamma": gamma}, Taught(target, seed)
        ), None
    kind, options = (DRAFTERS | LIGHTER | PARTS | STAGED | AHEAD | HEAD_CHAINS)[name]
    if name in AHEAD:
        part, given = drafter(options, target, texts, gamma)
        wraps = part if given is None else create(part, target.config, given)
        return create(_class(kind), target.config, {"wraps": wraps, "adaptive": False}, host_of(target)), None
    if name in STAGED | HEAD_CHAINS:
        less = range(len(options))  # a stage may draft more than the next one, or less
        own = [max(gamma - i, 0) for i in (less if seed % 2 else reversed(less))]
        made = [drafter(stage, target, texts, most, seed) for stage, most in zip(options, own, strict=True)]
        parts = [part if given is None else create(part, target.config, given) for part, given in made]
        return create(_class(kind), target.config, {"stages": parts, "gamma": gamma}), None
    if name in CONTROLLERS:
        return create(_class(kind), target.config, {**options, "gamma": gamma}, Taught(target, seed)), None
    if kind in (Bush, Told, Climber):
        return kind(target.config, texts, gamma=gamma, **options), None
    options = {**options, "gamma": gamma}
    if "script" in options:
        options["script"] = script(options["script"], texts)
    if kind in {"draft_model", "quantized"}:
        return create(_class(kind), target.config, options, host_of(target)), None
    return _class(kind), options


_class = cache(drafter_class)  # finding one reads the metadata of all packages


# -- runtimes ---------------------------------------------------------------------------------------------


def check_cache(context, texts, _round):
    """After every round the cache holds what a fresh prefill of the committed tokens would."""
    runtime = context.runtime
    for text in texts:
        tokens = text.tokens[: text.cached]
        fresh = runtime.new_cache(1, len(tokens))
        rows = Rows.of([0] * len(tokens), range(len(tokens)))
        runtime.run(runtime.embed(tokens, rows.positions), LayerPlan.full(runtime.config.num_layers), rows, fresh)
        for ours, theirs in zip(context.cache.keys + context.cache.values, fresh.keys + fresh.values, strict=True):
            assert (ours[text.slot, : len(tokens)] - theirs[0, : len(tokens)]).abs().max() < 1e-12


def check_next(context, texts, round_):
    """The cache gives the next logits that a fresh prefill would (asked every third time)."""
    runtime = context.runtime
    for text in [texts[commit.sequence] for commit in round_.commits if (round_.index + commit.sequence) % 3 == 0]:
        kept, fresh = (
            next_logits(runtime, text.tokens, *where)
            for where in ((context.cache, text.slot, text.cached), (runtime.new_cache(1, len(text.tokens)), 0, 0))
        )
        assert np.abs(kept - fresh).max() < 1e-11


def next_logits(runtime, tokens, cache, slot, cached):
    """Logits [V] of the last token; the first ``cached`` ones are in the slot. Its row is run again in any case."""
    rows = Rows.of([slot] * (len(tokens) - cached), range(cached, len(tokens)))
    hidden = runtime.embed(tokens[cached:], rows.positions)
    hidden, _ = runtime.run(hidden, LayerPlan.full(runtime.config.num_layers), rows, cache)
    return runtime.logits(hidden[-1:])[0]


@dataclass(frozen=True)
class Target:
    """A runtime: how it is made, how many cells a drafter has on it, and what must hold after every round.

    ``drafters`` are those that it can have: one with recurrent layers verifies chains only.
    """

    make: Callable[[], Runtime]
    cells: int
    after_round: Callable[..., None] | None = None
    drafters: Collection[str] = tuple(DRAFTERS)


RUNTIMES = {
    "toy": Target(lambda: MarkovRuntime(SIZE, num_layers=5, seed=1), cells=45),
    "torch": Target(tiny_runtime, cells=9, after_round=check_cache),
    "torch static": Target(tiny_static, cells=12, after_round=check_cache, drafters=ON_A_GRID),
    **{
        f"hybrid {kind}": Target(partial(tiny_hybrid, kind), cells=9, after_round=check_next, drafters=HYBRID)
        for kind in STATES
    },
    # rows are independent of each other, so equality needs no float64 here, nor a tolerance
    **{f"cpu {kind}": Target(partial(tiny_core, kind), cells=18) for kind in ("fp32", "bf16", "int8", "int4")},
}


@cache
def runtime(name):
    """The runtime of that name, made once."""
    return RUNTIMES[name].make()


# -- cells ------------------------------------------------------------------------------------------------


def new_tokens_only(prefix, logits):
    """A processor that needs the prefix of its own row: tokens of the text become unlikely."""
    return logits - 2.0 * np.isin(np.arange(SIZE), list(prefix))


TEMPERATURES = (0.0, 0.3, 1.0, 1.5)
ALONE = [[name] for name in PROCESSORS]
TOGETHER = [some(np.random.default_rng([5, i]), PROCESSORS) for i in range(30)]
SHAPINGS: list[dict[str, Any]] = [
    {},
    {"processors": (new_tokens_only,)},
    *(settings(np.random.default_rng([6, i]), names) for i, names in enumerate([*ALONE, *TOGETHER])),
]


@dataclass(frozen=True)
class Cell:
    """One configuration; ``seed`` chooses lengths and ends."""

    shaping: int
    temperature: float
    gamma: int
    texts: int
    coupled: bool
    seed: int

    @property
    def sampling(self):
        return Sampling(self.temperature, coupled=self.coupled, **SHAPINGS[self.shaping])


def cells(runtime_name, drafter_name) -> Iterator[Cell]:
    """Every value of every axis, in a random arrangement; shapings go round over the drafters."""
    count = RUNTIMES[runtime_name].cells
    if drafter_name in [*STAGED, *AHEAD, *WITH_HEADS, *WITH_MODULES]:
        count = min(count // 2, 18)
    place = [*DRAFTERS, *LIGHTER, *PARTS, *STAGED, *AHEAD, *WITH_HEADS, *WITH_MODULES].index(drafter_name)
    random = np.random.default_rng([place, *runtime_name.encode()])

    def axis(values):
        return random.permutation(np.resize(values, count)).tolist()

    shapings = axis(np.roll(range(len(SHAPINGS)), -place * count))
    axes = zip(shapings, axis(TEMPERATURES), axis(range(9)), axis(range(1, 5)), axis([0, 1]), strict=True)
    for seed, (shaping, temperature, gamma, texts, free) in enumerate(axes):
        coupled = drafter_name in SAMPLED or not free
        yield Cell(shaping, temperature, gamma, texts, coupled, seed)


@cache
def plain(runtime_name, sampling, text):
    """Plain decoding's text from a prompt, longer than any cell needs, by the oracle."""
    new = oracle(runtime(runtime_name), PROMPTS[text], MOST, Chance(SEED, text), sampling)
    return PROMPTS[text] + new


def check(runtime_name, drafter_name, cell) -> tuple[list[int], int]:
    """Compare a cell with the oracle; how many tokens each draft had accepted, and the ends inside a draft."""
    random = np.random.default_rng([cell.seed, cell.texts])
    texts = [plain(runtime_name, cell.sampling, i) for i in range(cell.texts)]
    prompts = PROMPTS[: cell.texts]
    counts = random.integers(1, MOST + 1, size=cell.texts).tolist()
    stops = [
        text[len(p) + int(random.integers(MOST))] if random.random() < 0.5 else -1
        for p, text in zip(prompts, texts, strict=True)
    ]
    accepted: list[int] = []
    cut = 0

    def each_round(context, all_texts, round_):
        nonlocal cut
        accepted.extend(commit.accepted for commit in round_.commits if commit.drafted)
        cut += sum(
            commit.finish_reason == "stop" and 0 < commit.accepted < commit.depth for commit in round_.commits
        )
        if (check_round := RUNTIMES[runtime_name].after_round) is not None:
            check_round(context, all_texts, round_)

    kind, options = drafter(drafter_name, runtime(runtime_name), texts, cell.gamma, cell.seed)
    done = run(
        runtime(runtime_name),
        prompts,
        kind,
        options,
        new_tokens=counts,
        sampling=cell.sampling,
        seed=SEED,
        ends=[lambda token, stop=stop: token == stop for stop in stops],
        each_round=each_round,
        clock=Erratic(cell.seed, runtime(runtime_name).costs)
        if drafter_name in CONTROLLERS | HEAD_CONTROLLERS
        else time.perf_counter,
    )
    for prompt, text, count, stop, got in zip(prompts, texts, counts, stops, done, strict=True):
        want = text[len(prompt) : len(prompt) + count]
        if stop in want:
            want = want[: want.index(stop) + 1]
        assert got.tokens[len(prompt) :] == want, cell
        assert got.finish_reason == ("stop" if want[-1] == stop else "length"), cell
    return accepted, cut
