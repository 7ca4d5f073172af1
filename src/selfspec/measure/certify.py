"""Proof on the user's own model and machine that speculation changes nothing, or where it does."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from selfspec._version import __version__
from selfspec.errors import OptionError
from selfspec.machine import processor, version_of
from selfspec.measure.certificate import Certificate, Check
from selfspec.measure.equality import coupled_check, greedy_checks, processors_check
from selfspec.measure.rows import rows_check
from selfspec.measure.sampled import model_law_check, shallow, toy_law_check
from selfspec.measure.trial import Candidate, Prompt, Trial
from selfspec.types import require_types

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.engine import Engine
    from selfspec.model.config import ModelConfig

FEWER = 2  # prompts of the checks that repeat the greedy one under other conditions
LAW_PROMPTS = 1


@dataclass(frozen=True)
class CertifyOptions:
    """How much to write per text, and the seed of what is sampled."""

    max_new_tokens: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        require_types(self)
        if self.max_new_tokens < 2:  # the first token comes from the prefill, undrafted
            raise OptionError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 2 here")
        if self.seed < 0:
            raise OptionError(f"seed is {self.seed}; it must be 0 or a positive integer")


def default_candidates(config: ModelConfig) -> list[Candidate]:
    """Look-up, early exit at its default and shallow, and a comb; look-up alone where there is one layer.

    No comb where recurrent layers verify chains only. The look-ups draft whether it pays or not: what is not
    drafted proves nothing.
    """
    chains = [Candidate("ngram", {"adaptive": False})]
    comb = Candidate("ngram", {"adaptive": False, "siblings": 2})
    if config.num_layers > 1:
        depth = shallow(config.num_layers)
        chains += [Candidate("early_exit", {}), Candidate("early_exit", {"exit_layer": depth, "gamma": 2})]
        comb = Candidate("early_exit", {"siblings": 2, "gamma": 3})
    return chains if config.recurrences else [*chains, comb]


def certify(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    candidates: Sequence[Candidate] | None = None,
    options: CertifyOptions = CertifyOptions(),
    notify: Callable[[str], None] = lambda _: None,
) -> Certificate:
    """Compare drafted texts with plain decoding on ``prompts`` (token ids, as `Engine.encode` makes them).

    ``candidates`` None tries the drafters of `default_candidates`. ``notify`` is called with a line after
    every step. Raises OptionError for a drafter that this model cannot have, or that drafts nothing.
    """
    runtime = engine.runtime
    chosen = default_candidates(engine.config) if candidates is None else list(candidates)
    for candidate in chosen:
        if not candidate.make(engine).options.gamma:
            raise OptionError(f"{candidate.name} with γ 0 drafts nothing, so there is nothing to certify")
    if not prompts:
        raise OptionError("there are no prompts; give at least one")
    numbered = [Prompt(number, tuple(tokens)) for number, tokens in enumerate(prompts, 1)]
    trial = Trial(engine, numbered, chosen, options.max_new_tokens, notify)
    few = trial.fewer(FEWER)
    made: list[Check] = []

    def run(about: str, check: Callable[[], list[Check]]) -> None:
        notify(about)
        started = time.perf_counter()
        first, *others = check()
        made.extend([replace(first, seconds=time.perf_counter() - started), *others])

    run("rows: passes of 1 to 8 rows, prefill, batch", lambda: [rows_check(runtime, numbered[0].tokens)])
    noise = float(made[0].details["largest_difference"])
    run(f"greedy: {len(trial.prompts)} texts without a draft", lambda: greedy_checks(trial, noise))
    run(f"coupled: {len(few.prompts)} texts without a draft", lambda: [coupled_check(few, options.seed)])
    run(f"processors: {len(few.prompts)} texts without a draft", lambda: [processors_check(few)])
    run("model law: all outcomes", lambda: [model_law_check(trial.fewer(LAW_PROMPTS))])
    run("toy law: samples", lambda: [toy_law_check(options.seed)])
    return Certificate(_subject(engine, trial, options), made)


def _subject(engine: Engine, trial: Trial, options: CertifyOptions) -> dict[str, Any]:
    """What was certified, and where."""
    runtime = engine.runtime
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {
            "name": engine.name,
            "fingerprint": engine.fingerprint or None,
            "config_sha256": _sha256(asdict(engine.config)),
        },
        "runtime": runtime.name,
        "precision": runtime.precision,
        "runs_on": runtime.runs_on,
        "machine": {"processor": processor(), "cores": os.cpu_count(), "system": platform.platform()},
        "versions": {
            "selfspec": __version__,
            "python": platform.python_version(),
            **{name: version_of(name) for name in ("numpy", "torch")},
        },
        "drafters": [candidate.to_dict(engine) for candidate in trial.candidates],
        "prompts": {
            "count": len(trial.prompts),
            "tokens": sum(len(prompt.tokens) for prompt in trial.prompts),
            "sha256": _sha256([list(prompt.tokens) for prompt in trial.prompts]),
        },
        **asdict(options),
    }


def _sha256(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
