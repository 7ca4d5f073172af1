"""Which texts can be drafted for and judged on the device, and what the host makes of it.

Whoever wants to look at logits cannot: processors, grammars, callables, coupled noise, log probabilities and
drafters that learn from verifications. Their texts go the ordinary way, row by row on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.processors import active
from selfspec.runtime.on_device import Case, Findings, Start
from selfspec.types import Draft, OneHot, Verdict
from selfspec.verify import verify_chain, verify_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from selfspec.context import Context, Text
    from selfspec.plans import LayerPlan
    from selfspec.settings import Array, Sampling
    from selfspec.types import Distribution


def is_plain(sampling: Sampling) -> bool:
    """Whether a law follows from its logits, by temperature, top-k, top-p and min-p."""
    return not (active(sampling) or sampling.coupled or sampling.typical_p < 1.0)


def draft_steps(
    context: Context, plan: LayerPlan, texts: Sequence[Text], gammas: Sequence[int]
) -> list[Draft] | None:
    """Drafts of γ tokens each that the host does not see; None where they must be drafted step by step."""
    device, sampling = context.runtime.on_device, texts[0].sampling
    if device is None or not context.feeds.is_idle or plan.kept or not is_plain(sampling):
        return None
    if any(text.logprobs is not None for text in texts):  # the host judges them
        return None
    if any(text.sampling != sampling or text.samples_drafts != texts[0].samples_drafts for text in texts):
        return None
    law = sampling if texts[0].samples_drafts else sampling.likeliest
    starts = []
    for text, gamma in zip(texts, gammas, strict=True):
        uniforms = () if law.is_greedy else text.chance.ahead(gamma)
        starts.append(Start(text.slot, len(text.tokens) - 1, text.pending, gamma, uniforms))
    for text, start in zip(texts, starts, strict=True):
        text.chance.skip(len(start.uniforms))
        context.count([text.slot] * start.gamma, plan.row_layers)
    return device.draft(plan, starts, context.cache, law)


def judged(
    context: Context, drafts: Mapping[Text, Draft], scored: Sequence[Array]
) -> dict[Text, Callable[[], Verdict]]:
    """What says the verdict of each text that was judged on the device; the others are for the host."""
    device = context.runtime.on_device
    if device is None:
        return {}
    groups: dict[Sampling, list[tuple[Text, Case]]] = {}
    for (text, draft), logits in zip(drafts.items(), scored, strict=False):
        if text.logprobs is None and draft.watch is None and is_plain(text.sampling):
            if draft.laws is not None and (draft.parents is not None or text.sampling.is_greedy):
                continue
            most = 0 if text.sampling.is_greedy else len(draft.widths) + 2
            groups.setdefault(text.sampling, []).append((text, Case(draft, logits, text.chance.ahead(most))))
    found: dict[Text, Callable[[], Verdict]] = {}
    for sampling, pairs in groups.items():
        for (text, case), findings in zip(pairs, device.judge([c for _, c in pairs], sampling), strict=True):
            if findings is not None:
                found[text] = _verdict(text, case.draft, findings)
    return found


def _verdict(text: Text, draft: Draft, findings: Findings) -> Callable[[], Verdict]:
    def of_chosen() -> Verdict:
        asked = 0

        def target(row: int) -> Distribution:
            nonlocal asked
            asked += 1
            return OneHot(findings.chose[row])

        rule = verify_chain if draft.parents is None else verify_tree
        try:
            return rule(draft, target, text.chance, text.ends)
        finally:
            text.chance.skip(0 if text.sampling.is_greedy else asked)

    def of_accepted() -> Verdict:
        text.chance.skip(findings.used)
        for i, token in enumerate(draft.tokens[: findings.accepted]):
            if text.ends(token):
                return Verdict(i + 1, None)
        text.chance.skip(1)
        return Verdict(findings.accepted, findings.bonus)

    return of_chosen if draft.laws is None else of_accepted
