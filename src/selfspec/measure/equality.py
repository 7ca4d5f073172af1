"""Texts with and without a draft: greedy, coupled and with processors, and the cache that they leave behind."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.measure.certificate import Check
from selfspec.measure.nearties import LARGEST_NOISE, NearTies, Numbers, Score, difference, logits_of
from selfspec.measure.trial import PLAIN, place
from selfspec.processors import process
from selfspec.sampling import Chance, distribution
from selfspec.types import OneHot, Prefix, Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.measure.trial import Candidate, Prompt, Trial, Written
    from selfspec.rounds import Stats
    from selfspec.runtime.base import Runtime

TEMPERATURE = 0.8
EPSILON = {"float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}  # 2^-23 elsewhere
SLACK = 4  # a cache may be that much further from a fresh prefill than plain decoding's, or than row counts make it


def _checked(name: str, ties: NearTies, **more: Any) -> Check:
    """What the comparisons of ``ties`` say."""
    equal = ties.texts - len(ties.divergences)
    said = f"{equal} of {ties.texts} texts are plain decoding's, token for token"
    if ties.near_ties:
        said += f"; {ties.near_ties} part at near-ties (allowed: {ties.allowed})"
    if ties.bugs:
        first = next(found for found in ties.divergences if found.kind == "bug")
        said += f"; {ties.bugs} part elsewhere, first prompt {first.prompt} at new token {first.index + 1}"
        said += f" ({first.drafter})"
    found: dict[str, Any] = {
        "texts": ties.texts,
        "equal": equal,
        "near_ties": ties.near_ties,
        "near_ties_allowed": ties.allowed,
        "bugs": ties.bugs,
        "divergences": [asdict(divergence) for divergence in ties.divergences],
    }
    return Check(name, ties.passed, said, found | more)


# -- greedy, and the cache --------------------------------------------------------------------------------


def greedy_checks(trial: Trial, noise: float) -> list[Check]:
    """Every drafter writes what plain decoding writes, and leaves the cache that a fresh prefill would.

    ``noise`` is what row counts change in the logits of this runtime.
    """
    ties, caches = NearTies(trial.runtime), _Caches(trial.runtime)
    plain = {prompt: trial.write(prompt, PLAIN, Sampling(), Chance(0)) for prompt in trial.prompts}
    own = max(caches.difference(written) for written in plain.values())
    limit = caches.limit(max(own, noise))
    off: list[dict[str, Any]] = []
    counts: dict[str, dict[str, int]] = {}
    for candidate, label, prompt in trial.drafted("greedy"):
        written = trial.write(prompt, candidate, Sampling(), Chance(0))
        _count(counts.setdefault(label, {}), written.stats)
        ties.compare(prompt.tokens, written.new, plain[prompt].new, place(prompt, label, written))
        off.append({"prompt": prompt.number, "drafter": label, "difference": caches.difference(written)})
    return [_checked("greedy", ties, drafts=counts), _cache_check(off, limit, own)]


def _count(sums: dict[str, int], stats: Stats) -> None:
    """What a drafter did: one that drafted nothing has shown nothing."""
    for name in ("rounds", "drafted", "accepted"):
        sums[name] = sums.get(name, 0) + getattr(stats, name)


def _cache_check(off: Sequence[dict[str, Any]], limit: float, own: float) -> Check:
    wrong = [found for found in off if not found["difference"] <= limit]
    worst = max(found["difference"] for found in off)
    said = (
        f"{len(off)} caches against a fresh prefill: next logits differ by at most {worst:.1e}, limit {limit:.1e}"
    )
    if wrong:
        said += f"; {len(wrong)} are wrong, first prompt {wrong[0]['prompt']} ({wrong[0]['drafter']})"
    details = {"caches": len(off), "largest_difference": worst, "limit": limit, "plain_difference": own}
    return Check("cache", not wrong, said, details | {"wrong": wrong})


class _Caches:
    """Compares what a cache says of the next token with what a fresh prefill says: all cells take part."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._fresh: dict[tuple[int, ...], Numbers] = {}
        self._largest = 0.0

    def difference(self, written: Written) -> float:
        """The largest difference between the logits [V] of the pending token."""
        tokens = tuple(written.text.tokens)
        last = (len(tokens) - 1, len(tokens))
        if tokens not in self._fresh:
            cache = self._runtime.new_cache(1, len(tokens))
            if last[0]:
                logits_of(self._runtime, tokens, (0, last[0]), cache)
            self._fresh[tokens] = logits_of(self._runtime, tokens, last, cache)
            self._largest = max(self._largest, float(np.abs(self._fresh[tokens]).max()))
        return difference(self._fresh[tokens], logits_of(self._runtime, tokens, last, written.cache))

    def limit(self, noise: float) -> float:
        """What may be: nothing where the runtime claims row invariance."""
        if self._runtime.is_row_invariant:
            return 0.0
        rounding = EPSILON.get(self._runtime.precision, 2.0**-23) * self._largest
        return SLACK * max(min(noise, LARGEST_NOISE.get(self._runtime.precision, noise)), rounding)


# -- coupled sampling -------------------------------------------------------------------------------------


def coupled_check(trial: Trial, seed: int) -> Check:
    """Coupled sampling writes the same text with and without a draft, token for token."""
    ties, sampling = NearTies(trial.runtime), Sampling(TEMPERATURE, coupled=True)
    plain = {p: trial.write(p, PLAIN, sampling, Chance(seed, p.number)) for p in trial.prompts}
    for candidate, label, prompt in trial.drafted("coupled"):
        chance = Chance(seed, prompt.number)
        written = trial.write(prompt, candidate, sampling, chance)
        where = place(prompt, label, written)
        ties.compare(prompt.tokens, written.new, plain[prompt].new, where, _perturbed(sampling, chance))
    return _checked("coupled", ties, temperature=TEMPERATURE, seed=seed)


def _perturbed(sampling: Sampling, chance: Chance) -> Score:
    """Log-probabilities with the fixed Gumbel noise: what coupled sampling takes the largest of."""

    def score(prefix: Prefix, logits: Numbers) -> Numbers:
        law, out = distribution(logits, sampling, prefix), np.full(len(logits), -np.inf)
        if isinstance(law, OneHot):
            out[law.token] = 0.0
            return out
        kept = np.flatnonzero(law.probs)
        uniform = chance.uniform(len(prefix), len(logits), kept)
        out[kept] = np.log(law.probs[kept]) - np.log(-np.log(uniform))
        return out

    return score


# -- processors -------------------------------------------------------------------------------------------


class _Recorder:
    """A user's callable with state: it keeps every call, and what it does depends on how many there were."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, tokens: Sequence[int], logits: Any) -> Any:
        self.calls.append(tuple(tokens))
        return self.shaped(len(self.calls), tokens, logits)

    @staticmethod
    def shaped(call: int, tokens: Sequence[int], logits: Any) -> Any:
        """Every third call lowers the best token, the others the one before."""
        out = logits + 0.0  # a copy in any library
        out[int(out.argmax()) if call % 3 == 0 else tokens[-1]] -= 2.0
        return out


def processors_check(trial: Trial) -> Check:
    """Penalties, bans and a callable with state: equal texts, and exactly the calls of plain decoding."""
    ties, wrong = NearTies(trial.runtime), []
    first = replace(trial, new_tokens=1)
    banned = {p: first.write(p, PLAIN, Sampling(), Chance(0)).new[0] for p in trial.prompts}
    plain = {p: _processed(trial, PLAIN, p, banned[p]) for p in trial.prompts}
    for candidate, label, prompt in trial.drafted("processors"):
        written, recorder = _processed(trial, candidate, prompt, banned[prompt])
        where, score = place(prompt, label, written), _shaped(_penalties(banned[prompt]))
        ties.compare(prompt.tokens, written.new, plain[prompt][0].new, where, score)
        start, stop = written.text.prompt_length, len(written.text.tokens)
        expected = [tuple(written.text.tokens[:n]) for n in range(start, stop)]
        if recorder.calls != expected:
            counts = {"calls": len(recorder.calls), "calls_expected": len(expected)}
            wrong.append({"prompt": prompt.number, "drafter": label} | counts)
    texts = _checked("processors", ties, wrong_calls=wrong)
    said = f"; a callable saw other calls in {len(wrong)}" if wrong else "; a callable saw no call more or less"
    return Check("processors", bool(texts.passed) and not wrong, texts.summary + said, texts.details)


def _penalties(banned: int) -> Sampling:
    """Processors of several kinds: of the prompt, of the answer, of both, and a ban."""
    return Sampling(repetition_penalty=1.2, presence_penalty=0.5, no_repeat_ngram_size=2, suppress_tokens=(banned,))


def _processed(trial: Trial, candidate: Candidate, prompt: Prompt, banned: int) -> tuple[Written, _Recorder]:
    recorder = _Recorder()
    sampling = replace(_penalties(banned), processors=(recorder,))
    return trial.write(prompt, candidate, sampling, Chance(0)), recorder


def _shaped(sampling: Sampling) -> Score:
    """What `_processed` takes the largest of."""

    def score(prefix: Prefix, logits: Numbers) -> Numbers:
        return np.asarray(_Recorder.shaped(prefix.num_new + 1, prefix.tokens, process(logits, sampling, prefix)))

    return score
