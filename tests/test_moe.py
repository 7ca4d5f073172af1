"""The moe drafter: the same mixture with fewer experts."""

from __future__ import annotations

from functools import cache

import pytest
from doubles import TINY, run
from family_models import model_of

from selfspec.drafters.moe import Moe, MoeOptions
from selfspec.errors import OptionError
from selfspec.runtime.torch import TorchRuntime
from selfspec.types import Sampling

PROMPTS = [[7, 3, 50, 21, 9], [80, 4]]
MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "granitemoe"]


@cache
def runtime_of(case):
    return TorchRuntime.of(model_of(case))


@pytest.mark.parametrize("case", MIXTURES)
@pytest.mark.parametrize("siblings", [0, 1])
def test_drafts_with_fewer_experts_change_nothing(case, siblings):
    """Guards the drafter on every mixture: the text of plain decoding, greedy and coupled, from a ragged batch."""
    for sampling in (Sampling(), Sampling(0.9, coupled=True)):
        accepted = []
        want = run(runtime_of(case), PROMPTS, new_tokens=14, sampling=sampling)
        got = run(
            runtime_of(case),
            PROMPTS,
            "moe",
            {"experts": 1, "gamma": 3, "siblings": siblings},
            new_tokens=14,
            sampling=sampling,
            each_round=lambda c, t, r, seen=accepted: seen.extend(commit.accepted for commit in r.commits),
        )
        assert [text.tokens for text in got] == [text.tokens for text in want]
        assert sum(accepted) > 0


def test_a_draft_reads_fewer_experts():
    """Guards the point of it: each draft row has as many experts as was asked for, each row of the target all."""
    runtime, asked = TorchRuntime.of(model_of("mixtral")), []
    mixture = type(runtime._blocks[0]._mixture)
    original = mixture.__call__

    def seen(self, x, per_token=None):
        asked.append((x.shape[0], per_token))
        return original(self, x, per_token)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixture, "__call__", seen)
        run(runtime, [PROMPTS[0]], "moe", {"gamma": 2}, new_tokens=4)
    assert {per_token for rows, per_token in asked if rows == 1} >= {1}
    assert {per_token for rows, per_token in asked if rows == 3} == {None}


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (TINY, {}, "this model is no mixture of experts"),
        ("mixtral", {"experts": 2}, "experts is 2; each token of this model has 2, so a draft must have 1 to 1"),
        ("mixtral", {"experts": 0}, "experts is 0"),
    ],
)
def test_what_cannot_draft_is_one_line(config, options, words):
    """Guards the user's mistake."""
    config = runtime_of(config).config if isinstance(config, str) else config
    with pytest.raises(OptionError, match=words):
        Moe(MoeOptions(**options), config)
