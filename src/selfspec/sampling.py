"""Logits to probabilities, and the randomness that picks from them.

``distribution`` is the only place where logits become probabilities, for drafter, verifier and plain decoding
alike. Order and semantics are those of transformers: processors (`selfspec.processors`), then temperature,
top-k, top-p, min-p, typical-p. Every cut sorts only what it may keep, and what the one before it has kept.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from typing import Any

import numpy as np

from selfspec.errors import ConstraintError, ModelError, OptionError, SelfspecError
from selfspec.processors import active, process
from selfspec.rounds import Score
from selfspec.types import Array, Dense, Distribution, Integers, OneHot, Prefix, Sampling, namespace, on_host


def distribution(logits: Array, sampling: Sampling, prefix: Prefix) -> Distribution:
    """The law of the token that follows ``prefix``, from its ``logits`` [V].

    Greedy is the one-hot of the largest processed logit, the lowest id where several are equal. Tokens that
    tie with the last one kept by a cut are kept as well. Probabilities are float64.

    Raises
    ------
    ConstraintError
        What ``sampling`` asks for excludes every token.
    OptionError
        A callable of the user returned NaN or infinity.
    ModelError
        The logits themselves are not finite.
    """
    processed = process(logits, sampling, prefix)
    xp = namespace(processed)
    best = int(xp.argmax(processed))
    top = float(processed[best])
    if not math.isfinite(top):
        raise _no_choice(top, logits, active(sampling), prefix)
    if sampling.is_greedy:
        return OneHot(best)
    return Dense.of(_masses(processed, top, sampling))


def _no_choice(top: float, logits: Array, names: list[str], prefix: Prefix) -> SelfspecError:
    """Why the largest processed logit is not finite."""
    place = f"new token {prefix.num_new + 1}"
    listed = " and ".join("the grammar" if name == "constraint" else name for name in names)
    if names and top == -math.inf:
        return ConstraintError(f"no token is left for {place} under {listed}; relax what contradicts")
    raw = float(namespace(logits).max(logits))
    if names and math.isfinite(raw):
        return OptionError(f"the largest logit for {place} is {top} after {listed}; it must be finite")
    return ModelError(f"the largest logit is {raw}: the weights are damaged or overflow this precision")


# -- cuts -------------------------------------------------------------------------------------------------


def _masses(logits: Array, top: float, sampling: Sampling) -> Array:
    """Numbers [V] proportional to the probabilities; 0 for what a cut leaves out. ``top`` is the largest logit."""
    k = sampling.top_k
    if not 0 < k < logits.shape[0]:
        return _cut(logits, top, sampling)
    # all that follows is about a few tokens only
    kept = logits >= _largest(logits, k)
    masses = namespace(logits).zeros_like(logits, dtype=namespace(logits).float64)
    masses[kept] = _cut(logits[kept], top, sampling)
    return masses


def _cut(logits: Array, top: float, sampling: Sampling) -> Array:
    """exp((x - top) / temperature), and 0 for what top-p, min-p and typical-p leave out, in this order."""
    xp = namespace(logits)
    # below 1e-300 the law is the one-hot in float64 anyway, and the division would overflow
    scaled = (xp.astype(logits, xp.float64) - top) / max(sampling.temperature, 1e-300)
    masses = xp.exp(scaled)
    if sampling.top_p < 1.0:
        masses = xp.where(scaled >= _nucleus(scaled, masses, sampling.top_p), masses, 0.0)
    if sampling.min_p > 0.0:  # arXiv 2407.01082: a share of the largest probability, whose mass is 1
        masses = xp.where(masses >= sampling.min_p, masses, 0.0)
    return _typical(scaled, masses, sampling.typical_p) if sampling.typical_p < 1.0 else masses


def _largest(values: Array, k: int) -> float:
    """The k-th largest of ``values`` [V]."""
    xp, size = namespace(values), values.shape[0]
    width = min(size // k, 64)
    if width > 1:
        # k blocks have a maximum of at least the k-th largest maximum, so k values do: sort only those
        blocks = xp.reshape(values[: size // width * width], (-1, width))
        least = xp.sort(xp.max(blocks, axis=1))[-k]
        values = values[values >= least]
    return float(xp.sort(values)[-k])


def _nucleus(scaled: Array, masses: Array, top_p: float) -> float:
    """The smallest of ``scaled`` among the fewest largest that hold ``top_p`` of ``masses`` = exp(``scaled``)."""
    xp = namespace(scaled)
    total = float(xp.sum(masses))
    # the tokens below it hold less than 1 - top_p together: none is kept, and none need be sorted
    least = math.log((1.0 - top_p) * total / scaled.shape[0])
    ordered = xp.flip(xp.sort(scaled[scaled >= least]))
    better = xp.cumulative_sum(xp.exp(ordered)) - xp.exp(ordered)
    return float(ordered[_count(better < top_p * total) - 1])


def _typical(scaled: Array, masses: Array, typical_p: float) -> Array:
    """Locally typical sampling (arXiv 2202.00666): the tokens whose surprisal is nearest to the entropy.

    With p = masses / sum, surprisal s = -log p and entropy H = sum p s, the fewest tokens in ascending order of
    |s - H| that hold ``typical_p``.
    """
    xp = namespace(masses)
    total = float(xp.sum(masses))
    scaled = xp.where(masses > 0.0, scaled, -math.inf)
    # s - H = centre - scaled, since the logarithm of the sum cancels
    centre = float(xp.sum(masses * xp.where(masses > 0.0, scaled, 0.0))) / total
    entropy = math.log(total) - centre
    # beyond it come the last in that order (their |s - H| exceeds H, that of a certain token at most), and
    # they hold less than 1 - typical_p together: none is kept, and none need be sorted
    far = max(math.log(masses.shape[0] / (1.0 - typical_p)), 2.0 * entropy)
    near = xp.sort(centre - scaled[scaled >= math.log(total) - far])
    distances = xp.abs(near)
    order = xp.argsort(distances)  # a descending and an ascending run: NumPy's stable sort merges them in O(V)
    before = _count(xp.cumulative_sum(xp.exp(centre - near)[order]) < typical_p * total)
    last = float(distances[order[min(before, near.shape[0] - 1)]])
    return xp.where(xp.abs(centre - scaled) <= last, masses, 0.0)


def _count(flags: Array) -> int:
    xp = namespace(flags)
    return int(xp.sum(xp.astype(flags, xp.int64)))


def top_probability(logits: Array) -> float:
    """The largest raw probability (temperature 1, nothing cut) under ``logits`` [V]: a draft's confidence."""
    xp = namespace(logits)
    return 1.0 / float(xp.sum(xp.exp(logits - xp.max(logits))))


def score(logits: Array, token: int, count: int) -> Score:
    """The log probability of ``token``, and the ``count`` likeliest tokens, under raw ``logits`` [V].

    Raw is what the model says: temperature 1, no penalty, ban or cut. In float64; ties go to the lower id.
    """
    x = on_host(logits).astype(np.float64)
    x = x - x.max()
    x -= math.log(float(np.exp(x).sum()))
    best: list[int] = []
    if count:
        least = np.partition(x, -min(count, len(x)))[-min(count, len(x))]
        kept = np.flatnonzero(x >= least)
        best = kept[np.argsort(-x[kept], kind="stable")][:count].tolist()
    return Score(float(x[token]), tuple((likely, float(x[likely])) for likely in best))


class Chance:
    """The randomness of one sequence: a stream of uniform numbers that are never used twice, and fixed noise.

    ``seed`` and ``stream`` select both; equal pairs give equal ones. The one token of a `OneHot` costs no
    number, so greedy decoding draws none at all; every test costs one, whatever its probability, since a ratio
    of 1 may be a rounding below it in another batch, and must not shift the stream. The noise, which only coupled
    sampling looks at, is a function of position and token: it may be looked at as often as anyone likes.
    """

    def __init__(self, seed: int, stream: int = 0) -> None:
        self._random = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(stream,))))
        self._noise = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(stream, 0)))
        self._noise_at: Any = self._noise.state
        self._ahead: deque[float] = deque()  # drawn, and not used yet

    def ahead(self, count: int) -> tuple[float, ...]:
        """The next numbers of the stream, which stay the next ones until `skip` says that they were used."""
        while len(self._ahead) < count:
            self._ahead.append(self._random.random())
        return tuple(islice(self._ahead, count))

    def skip(self, count: int) -> None:
        """So many numbers of those that `ahead` has shown were used."""
        for _ in range(count):
            self._ahead.popleft()

    def _next(self) -> float:
        return self._ahead.popleft() if self._ahead else self._random.random()

    def accept(self, probability: float) -> bool:
        """True with the given probability."""
        return bool(self._next() < probability)

    def pick(self, law: Distribution) -> int:
        """A token from ``law``."""
        return law.token if isinstance(law, OneHot) else law.pick(self._next())

    def realise(self, law: Distribution, position: int) -> OneHot:
        """The token of ``law`` that this sequence has at ``position``, prompt tokens counted from 0.

        It is the arg-max of log p(token) + G(position, token) with independent Gumbel noise G, which has the
        law p (Gumbel 1954). Laws that are nearly equal have the same token most of the time, so a draft that
        is realised with the target's noise agrees with it often (Daliri et al., arXiv 2408.07978).

        The uniform numbers behind G have 52 bits; a token far less likely than 2^-52 is never drawn.
        """
        if isinstance(law, OneHot):
            return law
        probs = on_host(law.probs)
        kept = np.flatnonzero(probs)
        uniform = self.uniform(position, len(probs), kept)
        # with G = -log(-log(uniform)), log p + G is largest where p / -log(uniform) is
        return OneHot(int(kept[np.argmax(probs[kept] / -np.log(uniform))]))

    def uniform(self, position: int, size: int, tokens: Integers) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The fixed numbers in (0, 1) of ``tokens`` at ``position``, in a vocabulary of ``size``.

        They are those of Philox (Salmon et al., SC'11) at a counter that is the position, one for each token of
        the vocabulary: they depend on no other call, on no cut and on no array library.
        """
        # the counter's first word counts on from 0 for the tokens of a position, which is the second word
        self._noise_at["state"]["counter"][1] = position
        self._noise.state = self._noise_at
        numbers = self._noise.random_raw(size)[tokens]
        return np.asarray(((numbers >> np.uint64(12)) + 0.5) * 2.0**-52)  # exact, and neither 0 nor 1
