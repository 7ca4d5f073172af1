"""A linear exit head and its gradients, by hand: what `learner` trains, in NumPy alone.

Of a row with the state h [d] after the exit layer the head says, over its D draft tokens,

    g = h + W h        n = w g r,  r = (mean(g²) + ε)^(-1/2)        z = E n        q = softmax(z)

with the matrix W [d, d], the weight w [d] of its norm and rows E [D, d] of the target's LM head, which stay as they
are. The loss of a row is the cross-entropy -Σ p log q to the target's law p over the draft tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]
    Places = NDArray[np.integer[Any]]

PIECE = 1 << 19
"""Weights that are moved without a pause."""


class Weights(NamedTuple):
    """What is trained: W [d, d] and w [d]; or what belongs to each number of them."""

    transform: Floats
    norm: Floats

    @property
    def is_finite(self) -> bool:
        """Whether all are numbers: one that is none makes the sum none."""
        return bool(np.isfinite(self.transform.sum()) and np.isfinite(self.norm.sum()))

    def copy(self) -> Weights:
        """The same numbers in memory of their own."""
        return Weights(self.transform.copy(), self.norm.copy())


class Lessons(NamedTuple):
    """Rows to learn from: states [B, d], and of the target's law the ``masses`` [B, K] of K draft tokens.

    ``places`` [B, K] say which, in the draft vocabulary; what has no mass may stand anywhere. A row's masses sum
    to 1, or to 0: then it teaches nothing.
    """

    states: Floats
    places: Places
    masses: Floats

    def part(self, rows: slice) -> Lessons:
        """Some of them."""
        return Lessons(self.states[rows], self.places[rows], self.masses[rows])


def normed(weights: Weights, eps: float, states: Floats) -> Floats:
    """N of ``states`` [B, d]: what the LM head reads."""
    return _normed(weights, eps, states)[0]


def _normed(weights: Weights, eps: float, states: Floats) -> tuple[Floats, Floats, Floats]:
    """N [B, d], g [B, d] and r [B, 1]."""
    g = states + states @ weights.transform.T
    r = 1.0 / np.sqrt(np.mean(g * g, axis=1, keepdims=True) + g.dtype.type(eps))
    return g * r * weights.norm, g, r


def softmax(values: Floats) -> Floats:
    """Of each row [B, D]; ``values`` are overwritten."""
    values -= values.max(axis=1, keepdims=True)
    np.exp(values, out=values)
    values /= values.sum(axis=1, keepdims=True)
    return values


def gradients(weights: Weights, rows: Floats, eps: float, lessons: Lessons) -> tuple[float, Weights]:
    """The sum of the losses of B rows, and its gradients."""
    states, places, masses = lessons
    n, g, r = _normed(weights, eps, states)
    q = softmax(n @ rows.T)
    at = np.arange(len(q))[:, None]
    loss = -float((masses * np.log(np.maximum(q[at, places], np.finfo(q.dtype).tiny))).sum())
    q *= masses.sum(axis=1, keepdims=True)  # rows that teach nothing
    np.subtract.at(q, (at, places), masses)
    dn = q @ rows
    dnorm = (dn * g * r).sum(axis=0)
    u = dn * weights.norm
    dg = r * (u - g * (r * r * np.mean(u * g, axis=1, keepdims=True)))
    return loss, Weights(dg.T @ states, dnorm)


@dataclass
class Adam:
    """Adam (arXiv 1412.6980) over `Weights`, in place.

    ``scale`` [d] is how large a step of the columns of W is, as a share of ``rate``.
    """

    weights: Weights
    scale: Floats
    rate: float
    betas: tuple[float, float] = (0.9, 0.99)
    steps: int = 0

    def __post_init__(self) -> None:
        self.first = Weights(*map(np.zeros_like, self.weights))
        self.second = Weights(*map(np.zeros_like, self.weights))

    def step(self, gradient: Weights) -> Iterator[None]:
        """Move the weights against a gradient, `PIECE` numbers at a time."""
        self.steps += 1
        b1, b2 = self.betas
        rate = self.rate * np.sqrt(1.0 - b2**self.steps) / (1.0 - b1**self.steps)
        parts = zip(self.weights, gradient, self.first, self.second, (self.scale, 1.0), strict=True)
        for weight, found, m, v, scale in parts:
            rows = max(1, PIECE * len(weight) // weight.size)
            for start in range(0, len(weight), rows):
                part = slice(start, start + rows)
                m[part] += (1.0 - b1) * (found[part] - m[part])
                v[part] += (1.0 - b2) * (np.square(found[part]) - v[part])
                weight[part] -= (rate * scale * m[part] / (np.sqrt(v[part]) + 1e-12)).astype(weight.dtype)
                yield
