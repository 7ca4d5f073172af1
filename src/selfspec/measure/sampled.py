"""Sampling has the law of plain decoding: by statistics on a toy chain, exactly on the user's own logits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from selfspec import drafters
from selfspec.measure.certificate import Check
from selfspec.measure.dice import AllOutcomes, KindChance, KindOutcomes
from selfspec.measure.laws import loop_law, p_value, plain_law, total_variation, transitions
from selfspec.measure.table import Table
from selfspec.measure.toy import MarkovRuntime
from selfspec.types import Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.measure.trial import Prompt, Trial
    from selfspec.types import Array

LEVEL = 1e-6  # a p-value below it is a bug: one false alarm in a million runs, if seeds were drawn
TEXTS = 100  # of 501 tokens
EXACT, SEEN = 1e-9, 1e-3  # total variation: of equal laws, and what the control must exceed
NEW_TOKENS, TOP_K = 4, 2
EXIT = "early_exit"


def _unchanged(_tokens: Sequence[int], logits: Array) -> Array:
    """A user's callable, beside which chains are judged token by token."""
    return logits


# rule -> what makes the loop judge by it: the sampling, and the leaves beside each draft token
RULES = {
    "block": (Sampling(1.0), 0),
    "chain": (Sampling(1.0, processors=(_unchanged,)), 0),
    "tree": (Sampling(1.0), 1),
}


def toy_law_check(seed: int) -> Check:
    """Chi-square of the transitions that the real loop samples on a Markov chain, by each rule of verification.

    The control has a verifier that accepts too much: where a fifth of the texts does not show it, the test has
    no power.
    """
    runtime = MarkovRuntime()
    law, found = runtime.transition(Sampling(1.0)), {}
    for name, (sampling, siblings) in RULES.items():
        options = {"exit_layer": 2, "gamma": 2, "siblings": siblings}
        drafter = drafters.create(EXIT, runtime.config, options)
        counts = transitions(runtime, sampling, drafter, TEXTS, seed=seed)
        control = transitions(runtime, sampling, drafter, TEXTS // 5, KindChance, seed)
        found[name] = {
            "tokens": int(counts.sum()),
            "p_value": p_value(counts, law),
            "control_tokens": int(control.sum()),
            "control_p_value": p_value(control, law),
        }
    right = all(values["p_value"] >= LEVEL for values in found.values())
    seen = all(values["control_p_value"] < LEVEL for values in found.values())
    shown = ", ".join(f"{name} p = {values['p_value']:.2g}" for name, values in found.items())
    said = f"{shown} on {TEXTS * 501} tokens each (a bug below {LEVEL:g}); a broken verifier is "
    said += "seen" if seen else "NOT seen: the test has no power"
    return Check("toy law", right and seen, said, {"level": LEVEL, "control_seen": seen, "drafts": found})


def model_law_check(trial: Trial) -> Check:
    """P(text) of the real loop on the model's own logits, by exploring all that chance can decide.

    Texts of a few tokens, each from the two likeliest, drafted by a shallow exit: few enough to enumerate.
    The control is a verifier that accepts too much; where even that changes nothing, nothing is shown.
    """
    layers = trial.runtime.config.num_layers
    if layers < 2:
        return Check("model law", None, "a model of one layer has no exit to draft from")
    exit_layer = shallow(layers)
    found = [_distances(trial, prompt, exit_layer) for prompt in trial.prompts]
    worst, seen = max(one["distance"] for one in found), max(one["control"] for one in found)
    said = f"{len(found)} x {NEW_TOKENS} tokens, exit {exit_layer}, all outcomes: total variation {worst:.1e}; "
    said += f"a broken verifier shows {seen:.1e}"
    passed = False if worst > EXACT else True if seen > SEEN else None
    if passed is None:
        said += ", too little to prove anything"
    sampling = {"temperature": 1.0, "top_k": TOP_K, "new_tokens": NEW_TOKENS, "exit_layer": exit_layer}
    return Check("model law", passed, said, {"limit": EXACT, "control_limit": SEEN, **sampling, "prompts": found})


def shallow(num_layers: int) -> int:
    """An exit layer whose drafts are mostly wrong, and cheap."""
    return max(1, num_layers // 8)


def _distances(trial: Trial, prompt: Prompt, exit_layer: int) -> dict[str, Any]:
    """The total variation between loop and plain decoding, with sound and with kind dice; the worse rule counts."""
    config, sampling = trial.runtime.config, Sampling(1.0, top_k=TOP_K)
    ends, room = config.eos_token_ids.__contains__, config.context_length - len(prompt.tokens)
    start = (prompt.tokens, min(NEW_TOKENS, room))
    table = Table(trial.runtime, *start)
    plain = plain_law(table.after, *start, sampling, ends)
    drafter = drafters.create(EXIT, config, {"exit_layer": exit_layer, "gamma": 2})

    def distance(dice: type[AllOutcomes]) -> float:
        shaped = (sampling, replace(sampling, processors=(_unchanged,)))
        laws = (loop_law(table, start, one, drafter, ends, dice) for one in shaped)
        return max(total_variation(plain, law) for law in laws)

    found = {"distance": distance(AllOutcomes), "control": distance(KindOutcomes)}
    return {"prompt": prompt.number, "texts": len(plain)} | found
