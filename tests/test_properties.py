"""Sampling, verification and the parsers of requests under inputs that hypothesis invents, against oracles."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec.cli.asking import asked
from selfspec.documents import json_line
from selfspec.errors import SelfspecError
from selfspec.sampling import Chance, distribution
from selfspec.server.failures import body_of, status_of
from selfspec.server.fields import ChatFields, CompletionFields, read
from selfspec.types import Dense, Draft, OneHot, Prefix, Sampling
from selfspec.verify import verify_block, verify_chain, verify_tree
from selfspec.wire import json_object

NOWHERE = Prefix((), 0)
quick = settings(max_examples=150, deadline=None, derandomize=True)

logits = st.lists(
    st.one_of(
        st.integers(-5000, 5000).map(lambda n: n / 100), st.sampled_from([0.0, 1.0, -1.0, 3e4, -3e4, -math.inf])
    ),
    min_size=1,
    max_size=40,
).filter(lambda found: max(found) > -math.inf)
cuts = st.fixed_dictionaries(
    {
        "temperature": st.one_of(st.floats(0.05, 5), st.sampled_from([1.0, 1e-300, 5e-324, 1e300])),
        "top_k": st.integers(0, 50),
        "top_p": st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
        "min_p": st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
        "typical_p": st.one_of(st.just(1.0), st.floats(0.05, 1.0)),
    }
)


def oracle(values, temperature, top_k, top_p, min_p, typical_p):
    """Kept tokens and their law by sorting everything, one cut after the other; and how near a cut a token is."""
    x = (np.asarray(values) - max(values)) / max(temperature, 1e-300)
    kept, near = np.isfinite(x) & (np.exp(x) > 0), math.inf
    if 0 < top_k < len(x):
        kept &= x >= np.sort(x)[-top_k]

    def law():
        masses = np.where(kept, np.exp(x), 0.0)
        return masses / masses.sum()

    def nucleus(order_by, share):
        """Of what is kept, the fewest in this order that hold the share, and what ties with the last."""
        nonlocal kept, near
        p = law()
        order = sorted(np.flatnonzero(kept), key=lambda t: order_by[t])
        held = np.concatenate([[0.0], np.cumsum(p[order])])
        near = min(near, np.abs(held - share).min())
        last = max(i for i in range(len(order)) if held[i] < share)
        limit = order_by[order[last]]
        others = (abs(order_by[t] - limit) for t in order if x[t] != x[order[last]])
        near = min(near, min(others, default=math.inf))
        kept &= order_by <= limit

    if top_p < 1:
        nucleus(-x, top_p)
    if min_p > 0:
        near = min(near, min(abs(np.exp(x[t]) - min_p) for t in np.flatnonzero(kept)) or math.inf)
        kept &= np.exp(x) >= min_p
    if typical_p < 1:
        p = law()
        with np.errstate(divide="ignore", invalid="ignore"):
            surprisal = -np.log(p)
            entropy = float(np.nansum(np.where(p > 0, p * surprisal, 0.0)))
            nucleus(np.where(p > 0, np.abs(surprisal - entropy), math.inf), typical_p)
    return law(), near


@quick
@given(logits, cuts)
def test_cuts_are_those_of_sorting_everything(values, options):
    """Guards the partial sorts: with any logits, ties and extremes, what is kept is what a full sort keeps."""
    want, near = oracle(values, **options)
    law = distribution(np.asarray(values), Sampling(**options), NOWHERE)
    found = np.asarray([law.probability(token) for token in range(len(values))])
    assert found.sum() == pytest.approx(1.0, abs=1e-9)
    assert found[int(np.argmax(values))] > 0 or options["typical_p"] < 1  # typical sampling may leave it out
    if near > 1e-7:  # else a rounding decides
        np.testing.assert_allclose(found, want, atol=1e-9)


@quick
@given(logits, cuts)
def test_torch_and_numpy_agree(values, options):
    """Guards the array API: one law, whoever made the logits."""
    laws = [
        distribution(made, Sampling(**options), NOWHERE)
        for made in (np.asarray(values), torch.tensor(values, dtype=torch.float64))
    ]
    _, near = oracle(values, **options)
    if near > 1e-7:
        ours, theirs = ([law.probability(token) for token in range(len(values))] for law in laws)
        assert ours == pytest.approx(theirs, abs=1e-9)


@quick
@given(logits, st.sampled_from([np.float16, np.float32, np.float64]))
def test_greedy_is_the_first_of_the_largest(values, dtype):
    """Guards ties in every precision."""
    made = np.asarray(values, dtype)
    assert distribution(made, Sampling(), NOWHERE) == OneHot(int(np.flatnonzero(made == made.max())[0]))


# -- verification -----------------------------------------------------------------------------------------

masses = st.lists(st.one_of(st.just(0.0), st.floats(0.001, 1.0)), min_size=4, max_size=4).filter(any)
laws = st.one_of(masses.map(lambda found: Dense.of(np.asarray(found))), st.integers(0, 3).map(OneHot))


@st.composite
def drafts(draw, sampled=True):
    """A chain or a tree over 4 tokens, of tokens that their laws can give; and the target's laws of its rows."""
    count = draw(st.integers(0, 5))
    parents = None
    if draw(st.booleans()):
        parents = tuple(draw(st.integers(-1, i - 1)) for i in range(count))
    if sampled and draw(st.booleans()):
        own = [draw(laws) for _ in range(count)]
        tokens = [draw(st.sampled_from([t for t in range(4) if law.probability(t) > 0])) for law in own]
        draft = Draft(tuple(tokens), laws=own, parents=parents)
    else:
        draft = Draft(tuple(draw(st.integers(0, 3)) for _ in range(count)), parents=parents)
    return draft, [draw(laws) for _ in range(count + 1)]


@quick
@given(drafts(), st.integers(0, 2**32), st.one_of(st.none(), st.integers(0, 3)))
def test_verdicts_are_possible_texts(case, seed, end):
    """Guards every verdict: a branch of the draft, tokens that the target can say, nothing after an end."""
    draft, targets = case
    asked_rows = []

    def target(row):
        asked_rows.append(row)
        return targets[row]

    ends = (lambda token: token == end) if end is not None else lambda _: False
    rules = [verify_tree] if draft.parents is not None else [verify_chain, verify_block, verify_tree]
    for rule in rules:
        verdict = rule(draft, target, Chance(seed), ends)
        branch = range(verdict.accepted) if verdict.branch is None else verdict.branch
        row = 0
        for node in branch:
            parent = node - 1 if draft.parents is None else draft.parents[node]
            assert parent + 1 == row
            assert targets[row].probability(draft.tokens[node]) > 0
            row = node + 1
        said = [draft.tokens[node] for node in branch]
        assert end not in said[:-1]
        assert (verdict.bonus is None) == bool(said and said[-1] == end)
        assert verdict.bonus is None or targets[row].probability(verdict.bonus) > 0
    assert set(asked_rows) <= set(range(len(targets)))


@quick
@given(st.lists(laws, min_size=1, max_size=5), st.integers(0, 2**32))
def test_a_draft_from_the_targets_own_laws_is_accepted(targets, seed):
    """Guards against a rejection that costs: with q = p all holds, whatever the rule and the seed."""
    chance = Chance(seed)
    tokens = tuple(chance.pick(law) for law in targets[:-1])
    draft = Draft(tokens, laws=targets[:-1])
    for rule in (verify_chain, verify_block, verify_tree):
        assert rule(draft, targets.__getitem__, Chance(seed + 1)).accepted == len(tokens)


# -- parsers ----------------------------------------------------------------------------------------------

values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8), st.just("\ud800")
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
NAMES = sorted({*ChatFields.model_fields, *CompletionFields.model_fields, "chat_template_kwargs", "best_of", "x"})
bodies = st.one_of(
    st.binary(max_size=40),
    values.map(lambda found: json.dumps(found).encode("utf-8", "surrogatepass")),
    st.dictionaries(st.sampled_from(NAMES), values, max_size=4).map(
        lambda found: json.dumps({"messages": [{"role": "user", "content": "a"}], "prompt": "b"} | found).encode()
    ),
)


@settings(quick, max_examples=200)
@given(bodies, st.sampled_from([ChatFields, CompletionFields]))
def test_bodies_are_fields_or_one_line(raw, kind):
    """Guards the door of the server: fields whose options can be asked for, or a 400 of one line in valid UTF-8."""
    wrong = None
    try:
        read(kind, raw).options()
    except SelfspecError as error:
        wrong = error
    if wrong is not None:
        assert status_of(wrong) == 400
        assert b"\\n" not in json.dumps(body_of(wrong), ensure_ascii=False).encode()


@settings(quick, max_examples=80)
@given(st.lists(bodies, max_size=3))
def test_lines_of_a_batch_are_requests_or_errors(lines):
    """Guards batch files: every line that is not blank has an outcome, and none ends the run."""
    raw = b"\n".join(line.replace(b"\n", b" ") for line in lines)
    found = list(asked(raw, ["tiny"]))
    assert len(found) == sum(1 for line in raw.split(b"\n") if line.strip())
    for each in found:
        assert isinstance(each.request, dict | SelfspecError)


@quick
@given(values)
def test_documents_are_json_that_every_parser_reads(value):
    """Guards results: what is not finite is null, and the rest comes back as it was."""
    line = json_line({"value": value})
    assert "\n" not in line
    json_object(line.encode("utf-8", "surrogatepass"), "it", "a value")
    json.loads(line, parse_constant=pytest.fail)
