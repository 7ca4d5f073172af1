"""Verification: probabilities and a draft in, a verdict out. Pure: no model, cache, clock or hidden state.

A sampled draft goes through the ratio test of Leviathan et al. (2211.17192) and Chen et al. (2302.01318):
token x is accepted with probability min(1, p(x) / q(x)), and a rejection is replaced by a token from
norm((p - q)+). A deterministic draft (greedy, look-up) needs no q: draw y from p, accept x if y is x, else
emit y. That is the same law, and it spends exactly the random numbers of plain decoding: with one seed, a
text that was drafted deterministically is the plain text, token for token.

``target(row)`` is the target's distribution of what follows a row of the draft: row 0 is the pending token,
row i + 1 the i-th draft token. Chains and trees ask for it from the root downwards, and only while the draft
is accepted: exactly the calls of plain decoding. Block verification looks ahead.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

from selfspec.errors import SelfspecError
from selfspec.types import Distribution, Draft, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Dice(Protocol):
    """What decides; ``sampling.Chance`` in production, an enumerator of all outcomes in tests."""

    def accept(self, probability: float) -> bool:
        """True with the given probability."""
        ...

    def pick(self, law: Distribution) -> int:
        """A token from ``law``."""
        ...


def _never(_token: int) -> bool:
    return False


def verify_chain(
    draft: Draft,
    target: Callable[[int], Distribution],
    dice: Dice,
    ends: Callable[[int], bool] = _never,
) -> Verdict:
    """How much of a chain holds, token by token, and the bonus token.

    ``ends(token)`` is asked once for every accepted token, and nothing follows one that ends the text: its
    calls, like those of ``target``, are exactly those of plain decoding.
    """
    assert draft.parents is None
    for i, token in enumerate(draft.tokens):
        law = target(i)
        if draft.laws is None:
            choice = dice.pick(law)
            if choice != token:
                return Verdict(i, choice)
        else:
            drafted_from = draft.laws[i]
            assert drafted_from.probability(token) > 0.0, "a draft token that its law cannot give"
            if not dice.accept(law.probability(token) / drafted_from.probability(token)):
                return Verdict(i, dice.pick(law.minus(drafted_from)))
        if ends(token):
            return Verdict(i + 1, None)
    return Verdict(len(draft), dice.pick(target(len(draft))))


def verify_block(
    draft: Draft,
    target: Callable[[int], Distribution],
    dice: Dice,
    ends: Callable[[int], bool] = _never,
) -> Verdict:
    """How much of a chain holds, judged as a whole (Sun et al., arXiv 2403.10444): never less on average.

    With w_0 = 1 and w_i = min(w_{i-1} p_i(x_i) / q_i(x_i), 1), the first i tokens hold with probability
    h_i = R_i / (R_i + 1 - w_i), where R_i is the mass of (w_i p_{i+1} - q_{i+1})+, and h_γ = w_γ; the
    longest that holds is taken, and the bonus is drawn from norm((w_i p_{i+1} - q_{i+1})+).

    ``ends`` is asked as in `verify_chain`, for what holds only. The target is asked for rows that plain
    decoding would never compute: do not use it where a logits processor keeps state. Such a row may have no
    law; then the draft ends with its last token, and the row is an error only if the text really comes there.
    A deterministic draft gains nothing and goes through `verify_chain`.
    """
    if draft.laws is None:
        return verify_chain(draft, target, dice, ends)
    assert draft.parents is None
    rows, weights = _weighed(draft.tokens, draft.laws, target)
    held = len(rows)
    if not dice.accept(weights[held]):
        held -= 1
        while held > 0 and not dice.accept(_share(rows[held], draft.laws[held], weights[held])):
            held -= 1
    for i, token in enumerate(draft.tokens[:held]):
        if ends(token):
            return Verdict(i + 1, None)
    if held == len(rows):
        return Verdict(held, dice.pick(target(held)))
    return Verdict(held, dice.pick(rows[held].minus(draft.laws[held], weights[held])))


def _weighed(
    tokens: Sequence[int], laws: Sequence[Distribution], target: Callable[[int], Distribution]
) -> tuple[list[Distribution], list[float]]:
    """The rows that judge a token each, and w_0, w_1, ...; nothing after a token that cannot hold.

    Where it stops depends on tokens that stay in the draft only: leaving out the last one would be a bias.
    """
    rows: list[Distribution] = []
    weights = [1.0]
    for i, (token, q) in enumerate(zip(tokens, laws, strict=True)):
        try:
            p = target(i)
        except SelfspecError:
            break
        rows.append(p)
        weights.append(min(weights[-1] * p.probability(token) / q.probability(token), 1.0))
        if weights[-1] == 0.0:
            break
    return rows, weights


def _share(p: Distribution, q: Distribution, weight: float) -> float:
    """R / (R + 1 - w), R being the mass of (w p - q)+; 0 where rounding leaves 0 / 0."""
    mass = p.excess(q, weight)
    return mass / (mass + (1.0 - weight)) if mass > 0.0 else 0.0


def verify_tree(
    draft: Draft,
    target: Callable[[int], Distribution],
    dice: Dice,
    ends: Callable[[int], bool] = _never,
) -> Verdict:
    """The branch of a tree that holds, and the bonus token; ``ends`` as in `verify_chain`.

    Deterministic children: y is drawn once from p; the child that is y is accepted, else y is the bonus.
    Sampled children go through recursive rejection, in order: each has the ratio test against what is left
    of p, and after a rejection p becomes norm((p - q)+), q being the law of the rejected child. The laws are
    those that the children were really drawn from, so one rule serves siblings with replacement (SpecInfer,
    arXiv 2305.09781) and without (a law then lacks the siblings before it; Jeon et al., 2402.14160).
    """
    children: dict[int, list[int]] = defaultdict(list)
    for i, parent in enumerate(range(-1, len(draft) - 1) if draft.parents is None else draft.parents):
        children[parent + 1].append(i)
    step = _matching if draft.laws is None else _surviving
    branch: list[int] = []
    row = 0
    while True:
        child, token = step(draft, children[row], target(row), dice)
        if child is None:
            return Verdict(len(branch), token, tuple(branch))
        branch.append(child)
        if ends(token):
            return Verdict(len(branch), None, tuple(branch))
        row = child + 1


def _matching(draft: Draft, children: Sequence[int], law: Distribution, dice: Dice) -> tuple[int | None, int]:
    """A token from ``law``, and the child that is it, if any."""
    choice = dice.pick(law)
    return next((child for child in children if draft.tokens[child] == choice), None), choice


def _surviving(draft: Draft, children: Sequence[int], law: Distribution, dice: Dice) -> tuple[int | None, int]:
    """The first child to pass the ratio test, and its token; with none, a token from what is left of ``law``."""
    assert draft.laws is not None
    for child in children:
        token, q = draft.tokens[child], draft.laws[child]
        if dice.accept(law.probability(token) / q.probability(token)):
            return child, token
        law = law.minus(q)
    return None, dice.pick(law)
