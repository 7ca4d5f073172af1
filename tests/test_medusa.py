"""Medusa's trees: the likeliest paths, whatever else is drafted; and what is refused."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from doubles import Host, run, tiny_core, tiny_runtime
from head_oracle import medusa_logits
from lossless_table import PROMPTS, head
from random_heads import random_facts, random_head

from selfspec import drafters
from selfspec.errors import OptionError
from selfspec.model.head_file import read_head, write_head
from selfspec.types import Sampling


def noted(drafter, monkeypatch):
    """What a drafter proposes, and after which tokens."""
    made, propose = [], drafter.propose

    def proposing(context, texts, gammas):
        found = propose(context, texts, gammas)
        made.extend((list(text.tokens), draft) for text, draft in zip(texts, found, strict=True))
        return found

    monkeypatch.setattr(drafter, "propose", proposing)
    return made


def paths_of(draft):
    return [draft.before(row + 1) for row in range(len(draft))]


@pytest.mark.parametrize("kind", ["torch", "cpu"])
def test_trees_are_the_likeliest_paths(kind, monkeypatch):
    """Guards the search: against all paths of three heads, sorted; depths and room end it, confidence cuts it."""
    runtime = tiny_runtime() if kind == "torch" else tiny_core("fp32")
    options = {"head": head("medusa"), "nodes": 14, "gamma": 3, **({} if kind == "torch" else {"head_bits": 32})}
    drafter = drafters.create("medusa", runtime.config, options, Host(runtime, {}))
    made, accepted = noted(drafter, monkeypatch), []
    run(runtime, PROMPTS[:3], drafter, new_tokens=20, each_round=lambda *_: accepted.extend(_[2].commits))
    assert max(commit.accepted for commit in accepted) >= 2
    made = [(tokens, draft) for tokens, draft in made if len(draft)]
    assert len(made) > 12
    heads = read_head(head("medusa"))
    for tokens, draft in made[::2]:
        said = medusa_logits(tiny_runtime(), heads, tokens)
        logs = (
            said
            - np.log(np.exp(said - said.max(1, keepdims=True)).sum(1, keepdims=True))
            - said.max(1, keepdims=True)
        )
        best = [np.argsort(-row)[:14] for row in logs]
        every = [
            (sum(logs[d][token] for d, token in enumerate(path)), path)
            for depth in (1, 2, 3)
            for path in product(*best[:depth])
        ]
        every.sort(key=lambda entry: -entry[0])
        wanted = [tuple(map(int, path)) for _, path in every[: len(draft)]]
        assert paths_of(draft) == wanted
    assert {len(draft) for _, draft in made} > {14}  # fewer where a text has no room


def test_confidence_cuts_paths(monkeypatch):
    runtime = tiny_runtime()
    options = {"head": head("medusa"), "nodes": 30, "gamma": 3, "confidence": 0.3}
    drafter = drafters.create("medusa", runtime.config, options, Host(runtime, {}))
    made = noted(drafter, monkeypatch)
    run(runtime, PROMPTS[:2], drafter, new_tokens=12)
    sizes = [len(draft) for _, draft in made]
    assert 1 <= max(sizes) < 12
    assert all(chance >= 0.3 for tokens, draft in made for chance in chances(runtime, tokens, draft))


def chances(runtime, tokens, draft):
    said = medusa_logits(runtime, read_head(head("medusa")), tokens)
    p = np.exp(said - said.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return [np.prod([p[d, token] for d, token in enumerate(path)]) + 1e-9 for path in paths_of(draft)]


def test_what_changes_along_a_path_is_drafted_as_a_chain(monkeypatch):
    """Guards acceptance under penalties: a tree of raw probabilities would repeat what they forbid."""
    runtime = tiny_runtime()
    options = {"head": head("medusa"), "nodes": 9, "gamma": 3}
    drafter = drafters.create("medusa", runtime.config, options, Host(runtime, {}))
    made = noted(drafter, monkeypatch)
    run(runtime, PROMPTS[:1], drafter, new_tokens=12, sampling=Sampling(repetition_penalty=1.3))
    assert any(len(draft) == 3 for _, draft in made)
    assert all(draft.parents is None for _, draft in made)


def test_what_is_refused(tmp_path):
    runtime, path = tiny_runtime(), str(tmp_path / "head.safetensors")

    def refusal(head, **options):
        write_head(path, head)
        with pytest.raises(OptionError) as caught:
            drafters.create("medusa", runtime.config, {"head": path, **options}, Host(runtime, {}))
        return str(caught.value)

    facts = random_facts("medusa", "blocks")
    assert "after layer 4" in refusal(random_head(random_facts("medusa", "blocks", taps=(4,))))
    assert "wide" in refusal(random_head(random_facts("medusa", "blocks", hidden_size=40)))
    assert "nodes is 2000" in refusal(random_head(facts), nodes=2000)
    assert "of the kind eagle: use it with --draft eagle" in refusal(random_head(random_facts()))
    with pytest.raises(OptionError, match="heads of 0 blocks"):
        random_facts("medusa", "blocks", blocks=0)
    with pytest.raises(OptionError, match="train medusa"):
        drafters.create("medusa", runtime.config, {})


def test_the_core_computes_what_torch_does():
    """Guards the core's products without its norm, and rows that depend on no other, in every kind of weights."""
    heads = random_head(random_facts("medusa", "blocks", taps=(5,)), vocabulary=[0, 3, 7, 20, 60])
    given = np.random.default_rng(0).normal(0, 3, (8, 32))
    for part in heads.parts():
        want = tiny_runtime().attach(part)
        import torch

        states = want.run(want.features(torch.from_numpy(given)), [0] * 8, range(8), None)
        for bits, bound in ((32, 1e-3), (16, 0.5), (8, 0.5), (4, 10.0)):
            made = tiny_core("fp32").attach(part, bits)
            together = made.run(made.features(given), [0] * 8, range(8), None)
            alone = [made.run(made.features(given[i : i + 1]), [0], range(1), None) for i in range(8)]
            np.testing.assert_array_equal(together, np.concatenate(alone))
            assert np.abs(made.logits(together) - want.logits(states)).max() < bound
            if bits == 32:
                for ours, theirs in zip(made.best(together), want.best(states), strict=True):
                    assert ours.token == theirs.token
                    assert ours.probability == pytest.approx(theirs.probability, rel=1e-3)
