"""Skip sets of one size to be tried: random ones, and now and then what a Bayesian optimiser asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.types import SubLayer


def load_optuna() -> Any:
    """The module, which is an extra. Raises OptionError where it is missing."""
    try:
        import optuna
    except ImportError as error:
        raise OptionError("optuna is missing; install it with: pip install 'selfspec[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Proposals:
    """Sets of ``size`` of the ``steps``; every ``bayes_interval``-th comes from the optimiser, told of all scores.

    The optimiser is optuna's tree-structured Parzen estimator over one number from 0 to 1 per sub-layer; the
    largest ``size`` numbers are the set. It is told of zeros and ones, as SWIFT tells its Gaussian process.
    """

    def __init__(self, steps: Sequence[SubLayer], size: int, bayes_interval: int, seed: int = 1) -> None:
        assert 0 < size < len(steps)
        self._steps, self._size, self._interval = list(steps), size, bayes_interval
        self._random = np.random.default_rng(seed)
        self._optuna = load_optuna()
        self._space = {
            f"{step.part} {step.layer}": self._optuna.distributions.FloatDistribution(0.0, 1.0) for step in steps
        }
        sampler = self._optuna.samplers.TPESampler(seed=seed)
        self._study = self._optuna.create_study(direction="maximize", sampler=sampler)
        self._count = 0

    def next(self) -> tuple[SubLayer, ...]:
        """The sub-layers to leave out in the next trial, in order."""
        self._count += 1
        if self._count % self._interval:
            values = self._random.random(len(self._steps))
        else:
            trial = self._study.ask(self._space)
            values = np.asarray([trial.params[name] for name in self._space])
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)  # the set itself is told below
        chosen = np.argsort(-values, kind="stable")[: self._size]
        return tuple(self._steps[i] for i in sorted(chosen.tolist()))

    def tell(self, skipped: Sequence[SubLayer], score: float) -> None:
        """What came of a set."""
        out = set(skipped)
        values = {name: float(step in out) for name, step in zip(self._space, self._steps, strict=True)}
        self._study.add_trial(
            self._optuna.trial.create_trial(params=values, distributions=self._space, value=score)
        )
