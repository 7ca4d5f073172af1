"""Heads in training: roll-outs against decoding step by step, losses against their definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from doubles import tiny_runtime

from selfspec.model.head_file import HeadFacts
from selfspec.train.heads.corpus import Sample
from selfspec.train.heads.features import Anew, Reader
from selfspec.train.heads.learner import Learner
from selfspec.train.heads.losses import Teacher, cross_entropy
from selfspec.train.heads.modules import module_of
from selfspec.train.heads.packer import Packer
from selfspec.train.heads.packs import Pack, Span
from selfspec.train.heads.start import started
from selfspec.train.heads.target import Sizes, facts_of, medusa_facts, teacher_of

D, STEPS = 16, 4
SIZES = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "intermediate_size": 24}
EAGLE = HeadFacts("eagle", "layer", (1, 2, 4), D, rope_theta=100.0, **SIZES)


def random_head(facts):
    """A head whose parts all matter."""
    torch.manual_seed(0)
    module = module_of(facts).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.4)
    return module


def normed(norm, x):
    return x / torch.sqrt((x * x).mean() + norm.eps) * norm.weight


def rotated(heads, position, theta):
    """Pairs half a head apart, as complex numbers."""
    half = heads.shape[-1] // 2
    angles = position * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    pairs = torch.complex(heads[:, :half], heads[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((pairs.real, pairs.imag), dim=-1)


class Decoder:
    """One row at a time with a cache of keys and values, as decoding has it: the contract's formulas, no more."""

    def __init__(self, module):
        self.module, self.cells, self.theta = module, [], module.facts.rope_theta

    def row(self, x, residual, position, layer):
        """The layer for one row that reads ``x``; the row's keys and values are added."""
        attention, width = layer.self_attn, layer.self_attn.width
        q, k, v = (p(x).view(-1, width) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        q, k = (rotated(part, position, self.theta) for part in (q, k))
        self.cells = [*self.cells[:position], (k, v)]
        each, found = len(q) // len(k), []
        for head in range(len(q)):
            group = head // each
            scores = torch.stack([q[head] @ keys[group] for keys, _ in self.cells]) / width**0.5
            shares = torch.softmax(scores, 0)
            found.append(sum(w * values[group] for w, (_, values) in zip(shares, self.cells, strict=True)))
        hidden = residual + attention.o_proj(torch.cat(found))
        return hidden + layer.mlp(normed(layer.post_attention_layernorm, hidden)) if layer.has_mlp else hidden

    def eagle(self, token, features, position):
        """Output of row ``position`` from the embedding of its token and features, or an earlier output."""
        layer = self.module.midlayer
        x = torch.cat((normed(layer.input_layernorm, token), normed(layer.hidden_norm, features)))
        return self.row(x, features, position, layer)


@torch.no_grad()
def test_roll_outs_are_what_decoding_computes():
    """Guards the custom mask: every row of every step of the training-time test against rounds of decoding.

    A round begins at each place: true features up to there, then its own outputs, in the cells behind them.
    """
    module, texts = random_head(EAGLE), [(3, 8), (2, 5), (4, 6), (3, 7)]  # prompt, tokens; the last does not roll
    pack, states, following = packed(texts)
    found = module(pack, STEPS)
    assert [len(part) for part in found] == [10, 4, 2, 1]
    places = [0] * STEPS
    for span in pack.spans:
        rows = slice(span.start, span.start + span.rows)
        features, tokens = states[rows].flatten(1) @ module.fc.weight.T, following[rows]
        for start in range(span.first, span.rows):
            decoder = Decoder(module)
            for j in range(start + 1):
                out = decoder.eagle(tokens[j], features[j], j)
            for step in range(min(STEPS, span.rows - start) if span.rolls else 1):
                if step:
                    out = decoder.eagle(tokens[start + step], out, start + step)
                row = places[step] + start - span.first
                torch.testing.assert_close(found[step][row], normed(module.norm, out), rtol=1e-11, atol=1e-11)
        places = [place + span.asked(step) for step, place in enumerate(places)]


def packed(texts):
    """Random states and embeddings of EAGLE rows."""
    spans, start = [], 0
    for prompt, length in texts:
        spans.append(Span(start, length - 2, prompt - 1, len(spans) < 3))
        start += length - 2
    states, following = (torch.randn(*shape, dtype=torch.float64) for shape in ((start, 3, D), (start, D)))
    return Pack(spans, EAGLE.taps, states, following), states, following


@pytest.mark.parametrize("form", ["linear", "attention", "layer"])
@torch.no_grad()
def test_exit_heads_compute_what_decoding_computes(form):
    """Guards the forms; one row at a time, with keys and values of the states themselves."""
    module = random_head(HeadFacts("exit_head", form, (2,), D, **SIZES))
    states = torch.randn(11, 1, D, dtype=torch.float64)
    spans = [Span(0, 7, 3), Span(7, 4, 2)]
    first, second = module(Pack(spans, (2,), states), 2)
    expected, later = [], []
    for span in spans:
        decoder = Decoder(module)
        for i in range(span.rows):
            h = states[span.start + i, 0]
            if form == "linear":
                out = h + module.transform.weight @ h
            else:
                out = decoder.row(normed(module.layer.input_layernorm, h), h, i, module.layer)
            if i >= span.first:
                expected.append(normed(module.norm, out))
            if i > span.first:
                later.append(expected[-1])
    torch.testing.assert_close(first, torch.stack(expected), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(second, torch.stack(later), rtol=1e-11, atol=1e-11)


def test_cross_entropy_is_its_definition():
    """Guards the shared expectation of the head's rows, chunks, entropy and gradient, at more than one chunk."""
    torch.manual_seed(0)
    head, last = torch.randn(7, D, dtype=torch.float64), torch.randn(300, D, dtype=torch.float64)
    states = torch.randn(300, D, dtype=torch.float64, requires_grad=True)
    found = Teacher(lambda x: 2.0 * x, head)(last)
    p = torch.softmax(2.0 * last @ head.T, -1)
    torch.testing.assert_close(found.entropy, -(p * p.log()).sum(-1))
    losses = cross_entropy(states, head, found.rows)
    plain = -(p * torch.log_softmax(states @ head.T, -1)).sum(-1)
    torch.testing.assert_close(losses, plain)
    weights = torch.rand(300, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((part * weights).sum(), states)[0] for part in (losses, plain))
    torch.testing.assert_close(ours, theirs)


def test_cross_entropy_with_products_in_bfloat16():
    """Guards that lower precision rounds products only: losses and gradients stay float32's within its rounding."""
    torch.manual_seed(0)
    head, states = torch.randn(40, D) / D**0.5, torch.randn(300, D, requires_grad=True)
    expected = Teacher(lambda x: x, head)(torch.randn(300, D)).rows
    exact, rounded = (cross_entropy(states, one, expected) for one in (head, head.bfloat16()))
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0.01, atol=0.01)
    exact, rounded = (torch.autograd.grad(part.sum(), states)[0] for part in (exact, rounded))
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.01)
    assert not torch.equal(rounded, exact)


def test_losses_of_a_model_of_two_layers():
    """Guards which rows count, and what the target says there: two texts, from tokens to the loss, by hand."""
    runtime = tiny_runtime(dtype="float32", num_layers=2)
    vocabulary = np.arange(5, 45)
    facts = facts_of(runtime, "exit_head", (1,), Sizes("linear"))
    module = started(facts, runtime, seed=0)
    module.transform.weight.data.normal_(std=0.1)
    random = np.random.default_rng(0)
    samples = [Sample(random.integers(0, 61, n).astype(np.int32), p, 0.0) for n, p in ((12, 4), (6, 4))]
    reader = Reader(runtime, [1])
    teacher = teacher_of(runtime, vocabulary, torch.device("cpu"))
    states = Anew(reader, [sample.tokens for sample in samples])
    learner = Learner({"exit": module}, teacher.head, 1, 1.0)
    losses = learner(Packer(runtime, samples, states, teacher)([0, 1], "exit_head"))
    by_hand, kl = [], []
    for sample in samples:
        found = reader(sample.tokens).to(torch.bfloat16).float()
        for index in range(sample.prompt_length + 1, len(sample.tokens)):  # the token that is predicted
            h, last = found[index - 1]
            g = h + module.transform.weight @ h
            logits = runtime.weights["lm_head.weight"][vocabulary] @ normed(module.norm, g)
            target = torch.from_numpy(runtime.logits(last[None]))[0, vocabulary]
            p = torch.softmax(target, -1)
            by_hand.append(float(-(p * torch.log_softmax(logits, -1)).sum().detach()))
            kl.append(by_hand[-1] + float((p * p.log()).sum()))
    assert len(by_hand) == 7 + 1
    assert float(losses.total.detach()) == pytest.approx(np.mean(by_hand), abs=1e-5)
    assert losses.steps == [[pytest.approx(np.mean(by_hand), abs=1e-5)]]
    assert losses.kl == [[pytest.approx(np.mean(kl), abs=1e-5)]]


def test_medusa_heads_by_hand():
    """Guards which place each head reads, the target's norm and its blocks, and what it is compared with."""
    runtime, vocabulary = tiny_runtime(dtype="float32", num_layers=2), np.arange(5, 45)
    facts = medusa_facts(runtime, heads=3, blocks=2)
    module = started(facts, runtime, seed=0)
    assert all(float(p.detach().abs().max()) == 0.0 for p in module.parameters())
    for parameter in module.parameters():
        parameter.data.normal_(std=0.2)
    random = np.random.default_rng(0)
    samples = [Sample(random.integers(0, 61, n).astype(np.int32), p, 0.0) for n, p in ((12, 4), (6, 4))]
    reader, teacher = Reader(runtime, []), teacher_of(runtime, vocabulary, torch.device("cpu"))
    packer = Packer(runtime, samples, Anew(reader, [sample.tokens for sample in samples]), teacher)
    losses = Learner({"medusa": module}, teacher.head, 3, 0.8)(packer([0, 1], "medusa"))
    rows, by_hand = runtime.weights["lm_head.weight"][vocabulary], [[], [], []]
    for sample in samples:
        states = reader(sample.tokens)[:, 0].to(torch.bfloat16).float()
        for index in range(sample.prompt_length + 1, len(sample.tokens)):  # the first token of a draft
            for i in range(min(3, len(sample.tokens) - index)):
                x = states[index - 2]
                x = x / torch.sqrt((x * x).mean() + runtime.config.norm_eps) * runtime.weights["model.norm.weight"]
                for j in range(2):
                    inner = module[i][j].linear.weight @ x + module[i][j].linear.bias
                    x = x + inner * torch.sigmoid(inner)
                p = torch.softmax(torch.from_numpy(runtime.logits(states[index + i - 1][None]))[0, vocabulary], -1)
                by_hand[i].append(float(-(p * torch.log_softmax(rows @ x, -1)).sum().detach()))
    assert [len(part) for part in by_hand] == [8, 6, 5]
    assert losses.steps == [[pytest.approx(np.mean(part), abs=1e-5) for part in by_hand]]
    total = sum(0.8**i * np.mean(part) for i, part in enumerate(by_hand))
    assert float(losses.total.detach()) == pytest.approx(total, abs=1e-5)


def test_steps_weigh_less_and_less():
    """Guards the weights 0.8^s."""
    module = random_head(EAGLE)
    pack, *_ = packed([(3, 9), (2, 5)])
    head = torch.randn(9, D, dtype=torch.float64)
    expected = Teacher(lambda x: x, head)(torch.randn(7, D, dtype=torch.float64))
    losses = Learner({"eagle": module}, head, 3, 0.8)(
        Pack(pack.spans, pack.taps, pack.states, pack.following, *expected)
    )
    (means,) = losses.steps
    assert float(losses.total.detach()) == pytest.approx(means[0] + 0.8 * means[1] + 0.64 * means[2])
