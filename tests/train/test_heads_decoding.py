"""What training measures and rolls out is what decoding drafts and accepts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from doubles import TINY, Host, run, tiny_runtime
from head_oracle import target_states
from random_heads import fitted_eagle, nearly_untrained, random_facts, random_head

from selfspec import drafters
from selfspec.model.config import Rope
from selfspec.model.head_file import LM_HEAD, write_head
from selfspec.train.heads.corpus import Sample
from selfspec.train.heads.features import Reader
from selfspec.train.heads.heldout import HeldOut
from selfspec.train.heads.losses import Teacher
from selfspec.train.heads.modules import module_of
from selfspec.train.heads.packs import Pack, Span
from selfspec.train.heads.target import Sizes, facts_of, final_norm

PROMPTS = [[5, 17, 3, 3, 42, 5, 17], [1], [9, 9, 9, 9, 2]]


def module_with(head):
    """The module of training with the weights of a file."""
    module = module_of(head.facts).double()
    module.load_state_dict({n: torch.from_numpy(w) for n, w in head.weights.items() if n != LM_HEAD})
    return module


LLAMA3 = Rope(
    100.0, kind="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=2.0, original_context=32, narrow=True
)


@pytest.mark.parametrize("rope", [TINY.rope, LLAMA3, Rope(100.0, kind="linear", factor=3.0)], ids=lambda r: r.kind)
@torch.no_grad()
def test_the_drafter_drafts_what_the_roll_out_says(tmp_path, rope):
    """Guards training against decoding itself: every draft of the loop, after rejected and accepted ones.

    The first start of a roll-out is the drafter's first row; the tokens after it are the draft's own.
    """
    runtime = tiny_runtime(rope=rope)
    answers = [text.tokens for text in run(runtime, PROMPTS, new_tokens=16)]
    like = facts_of(runtime, "eagle", (1, 2, 3), Sizes("layer"))
    assert like.rope.get("kind", "default") == rope.kind
    facts = replace(random_facts("eagle"), rope_theta=like.rope_theta, rope=like.rope)
    head = fitted_eagle(runtime, facts, answers)
    write_head(tmp_path / "eagle.safetensors", head)
    options = {"head": str(tmp_path / "eagle.safetensors"), "gamma": 3}
    drafter = drafters.create("eagle", runtime.config, options, Host(runtime, {}))
    seen, accepted, propose = [], [], drafter.propose

    def noting(context, texts, gammas):
        found = propose(context, texts, gammas)
        seen.extend(([*t.tokens], draft.tokens) for t, draft in zip(texts, found, strict=True) if draft.tokens)
        return found

    drafter.propose = noting
    run(runtime, PROMPTS, drafter, new_tokens=16, each_round=lambda *_: accepted.extend(_[2].commits))
    assert {0, 3} <= {commit.accepted for commit in accepted}
    module, lm_head = module_with(head), torch.from_numpy(head.weights[LM_HEAD]).double()
    for tokens, draft in seen:
        text = [*tokens, *draft]
        states = np.stack(target_states(runtime, text, head.facts.taps), axis=1)[: len(text) - 1]
        following = torch.from_numpy(np.asarray(runtime.embed(text[1:])))
        pack = Pack([Span(0, len(text) - 1, len(tokens) - 2)], head.facts.taps, torch.from_numpy(states), following)
        said = [int((step[0] @ lm_head.T).argmax()) for step in module(pack, len(draft))]
        assert [head.vocabulary[token] for token in said] == [*draft]
    assert len(seen) > 15


@torch.no_grad()
def test_held_out_acceptance_is_its_definition():
    """Guards which places count and how much: drafts from every place, greedy and sampled, one by one."""
    runtime, random = tiny_runtime(dtype="float32"), np.random.default_rng(1)
    heads = {
        "eagle": random_head(random_facts("eagle", taps=(1, 2, 4)), scale=0.3),
        "exit": nearly_untrained(runtime, random_facts("exit_head", "linear", taps=(4,))),
    }
    modules = {name: module_with(head).float() for name, head in heads.items()}
    greedy = [Sample(np.asarray(t.tokens, np.int32), len(p), 0.0) for t, p in zip(
        run(runtime, PROMPTS, new_tokens=20), PROMPTS, strict=True)]  # fmt: skip
    # so few tokens that random heads are right now and then
    said = np.bincount(np.concatenate([sample.tokens[sample.prompt_length :] for sample in greedy]))
    vocabulary = np.sort(np.argsort(-said)[:4])
    sampled = [Sample(random.choice([*vocabulary, 2], 9 + n).astype(np.int32), 3, 1.7) for n in range(2)]
    rows = torch.from_numpy(runtime.weight("head")[vocabulary])
    reader = Reader(runtime, [1, 2, 4])
    teacher = Teacher(final_norm(runtime).__call__, rows)
    held_out = HeldOut(runtime, [*greedy, *sampled], reader, teacher, vocabulary)
    assert len(held_out) == 3 * 19 + 5 + 6
    found = held_out.measure(modules, 3)
    for name, module in modules.items():
        for kind, samples in (("greedy", greedy), ("sampled", sampled)):
            came, went = np.zeros(3), np.zeros(3)
            for sample in samples:
                for start in range(sample.prompt_length + 1, len(sample.tokens)):
                    _one_draft(came, went, runtime, (module, reader, rows, vocabulary), sample, start)
            np.testing.assert_allclose(found[name][kind].alphas, went / np.maximum(came, 1e-300), atol=2e-5)
            assert came[2] > 0.0
            assert went[0] > 0.0
    alphas = np.asarray(found["exit"]["greedy"].alphas)
    assert found["exit"]["greedy"].tokens_per_round == 1 + alphas[0] + alphas[0] * alphas[1] * (1 + alphas[2])


def _one_draft(came, went, runtime, parts, sample, start):
    """A draft whose first token would be that at ``start``, along the text."""
    (module, reader, rows, vocabulary), weight = parts, 1.0
    tokens, is_eagle = sample.tokens, module.facts.kind == "eagle"
    states = reader(tokens)
    for step in range(min(3, len(tokens) - start)):
        behind = 1 + is_eagle
        span = Span(0, start + step + 1 - behind, start - behind)
        following = runtime.embed(tokens[1:].tolist())[: span.rows] if is_eagle else None
        pack = Pack([span], (1, 2, 4), states[: span.rows, :-1], following).of(module.facts.taps)
        q = np.zeros(61)
        # an exit head has nothing to roll out: its last row; EAGLE's last step has one row for each start
        state = module(pack, step + 1)[step][0] if is_eagle else module(pack)[0][-1]
        logits = (rows @ state).double().numpy()
        p_logits = runtime.logits(states[start + step - 1, -1][None])[0].astype(np.float64)
        said = tokens[start + step]
        came[step] += weight
        if sample.temperature == 0.0:
            agrees = float(vocabulary[logits.argmax()] == p_logits.argmax())
            went[step] += weight * agrees
            weight *= agrees
            continue
        p, q[vocabulary] = softmax(p_logits / sample.temperature), softmax(logits / sample.temperature)
        went[step] += weight * np.minimum(p, q).sum()
        weight *= min(1.0, q[said] / p[said])


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()
