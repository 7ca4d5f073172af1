"""The table of losslessness: every drafter on every runtime must give plain decoding's text, in every cell.

A drafter joins with a line in DRAFTERS, a runtime with a line in RUNTIMES. The cells are in `lossless_cells`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from doubles import STATES, Host, tiny_core, tiny_hybrid, tiny_runtime, tiny_static
from random_heads import fitted_eagle, fitted_medusa, fitted_module, nearly_untrained, random_facts
from wild_drafters import SIZE, Bush, Climber, Fickle, Taught, Told, script

from selfspec.drafters import create, drafter_class
from selfspec.measure.toy import MarkovRuntime
from selfspec.model.head_file import write_head
from selfspec.reference import oracle
from selfspec.runtime.base import Runtime
from selfspec.sampling import Chance
from selfspec.types import LayerPlan, Rows, Sampling

PROMPTS = [[5, 17, 3, 3, 42, 5, 17], [1], [9, 9, 9, 9, 2], list(range(20))]
PROMPT, NEW = PROMPTS[0], 20  # of tests with one text
MOST = 12  # new tokens of a text of the table
SEED = 3


# -- drafters ---------------------------------------------------------------------------------------------


@cache
def host_of(target):
    """An engine for drafters that need other models: one that often agrees, and the target in fewer bits."""
    if isinstance(target, MarkovRuntime):
        return Host(target, {"other": MarkovRuntime(SIZE, num_layers=4, seed=1)})
    light = tiny_core("int4")
    return Host(target, {"other": light, 8: tiny_core("int8"), 4: light})


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
