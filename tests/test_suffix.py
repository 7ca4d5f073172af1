"""The suffix drafter: what it copies, with what confidence, from a text, a prediction and a corpus."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles import TINY
from test_drafting import context_of, gives_up_and_comes_back, text_of
from test_loop_law import SIZE

from selfspec.drafters.lookup import SEPARATOR
from selfspec.drafters.ngram import Ngram, NgramOptions
from selfspec.drafters.suffix import Suffix, SuffixOptions
from selfspec.drafters.trust import Evidence, kind_of
from selfspec.errors import OptionError
from selfspec.measure.laws import loop_law, plain_law, total_variation
from selfspec.measure.toy import MarkovRuntime
from selfspec.runtime.costs import PassCosts
from selfspec.types import LayerPlan, Sampling

KINDS = {"suffix": (Suffix, SuffixOptions), "ngram": (Ngram, NgramOptions)}


def look_up(tokens, gamma=4, kind="suffix", prediction=(), prompt=None, **options):
    """A draft whatever it costs, and the drafter with its text."""
    drafter_class, options_class = KINDS[kind]
    config = replace(TINY, eos_token_ids=tuple(options.pop("eos", ())))
    drafter = drafter_class(options_class(**{"adaptive": False} | options), config)
    text = text_of(tokens)
    text.prompt_length = len(tokens) if prompt is None else prompt
    text.prediction = tuple(prediction)
    drafter.begin(text)
    return drafter.propose(context_of(PassCosts()), [text], [gamma])[0], drafter, text


def proposal(*args, **options):
    return list(look_up(*args, **options)[0].tokens)


@pytest.mark.parametrize(
    ("tokens", "options", "want"),
    [
        ([1, 2, 3, 4, 9, 1, 2], {}, [3, 4, 9, 1]),
        ([1, 2, 3, 4, 9, 1, 2], {"gamma": 2}, [3, 4]),
        ([1, 2, 3, 7, 8, 2, 5, 1, 2], {}, [3, 7, 8, 2]),  # the longer match wins
        ([1, 2, 3, 1, 2, 4, 1, 2], {}, [4, 1, 2, 4]),  # once each: the later one; past the end it repeats itself
        ([1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 4, 7, 1, 2], {}, [3, 9, 1, 2]),  # twice against once
        ([*range(10, 40), 5, *range(10, 40)], {}, [5, 10, 11, 12]),  # matches of any length
        ([5, 6, 7, 8], {}, []),
        ([5], {}, []),
        ([5, 5], {}, [5, 5, 5, 5]),
        ([5, 5], {"min_match": 2}, []),
        ([1, 2, 3, 1], {}, [2, 3, 1, 2]),
        ([1, 2, 3, 1], {"min_match": 2}, []),
        ([1, 2, 3, 4, 9, 1, 2], {"gamma": 0}, []),
        ([1, 2, 3, 4, 9, 1, 2], {"eos": [4]}, [3, 4]),
    ],
)
def test_look_up(tokens, options, want):
    """Guards longest match first, the most frequent continuation, then the latest; the ends of a draft."""
    assert proposal(tokens, options.pop("gamma", 4), **options) == want


@pytest.mark.parametrize(
    ("tokens", "want"),
    [
        ([1, 2, 3, 9, 1, 2], Evidence.ONLY),  # "2" stood nowhere else
        ([1, 2, 3, 9, 2, 3, 8, 1, 2], Evidence.BACKED),  # "2" stood elsewhere, and went on with 3 too
        ([1, 2, 3, 9, 2, 7, 8, 1, 2], Evidence.DOUBTED),
        ([1, 2, 3, 9, 1, 2, 3, 8, 1, 2], Evidence.ALL),
        ([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 7, 1, 2], Evidence.MOST),
        ([1, 2, 3, 9, 1, 2, 4, 1, 2], Evidence.FEW),
    ],
)
def test_evidence(tokens, want):
    """Guards what a token is counted with: all places of the match, or those of a shorter one behind it."""
    _, drafter, text = look_up(tokens)
    assert drafter._memories[text].considered[0][1][0].kind == kind_of(want, 2)


def test_confidence_is_the_rate_of_the_kind():
    """Guards the stop: it asks the same trust that learns."""
    tokens = [1, 2, 3, 9, 1, 2]
    rate = 0.54
    assert proposal(tokens, confidence=rate - 0.01) == [3, 9, 1, 2]
    assert proposal(tokens, confidence=rate + 0.01) == []


def test_it_learns_from_what_came_and_gives_up_and_comes_back():
    """Guards adaptive drafting: as for `ngram`, tokens that were not drafted teach, too."""
    gives_up_and_comes_back(Suffix(SuffixOptions(min_match=2), TINY), 20, 40)


@pytest.mark.parametrize("siblings", [0, 1, 2])
def test_siblings_are_the_next_most_frequent(siblings):
    """Guards combs: other continuations of the same match, the most frequent first, each depth from its own."""
    tokens = [1, 2, 7, 1, 2, 3, 1, 2, 3, 8, 1, 2, 4, 6, 1, 2, 4, 9, 1, 2, 4, 9, 50, 1, 2]
    draft, _, _ = look_up(tokens, 2, siblings=siblings)
    assert draft.tokens[:2] == (4, 9)
    leaves = {0: (), 1: (3, 6), 2: (3, 7, 6)}[siblings]
    assert draft.tokens[2:] == leaves
    if siblings:
        assert draft.parents == (-1, 0, *([-1] * siblings), 0)


# -- predictions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_begins_with_the_prediction_and_resumes_after_a_change(kind):
    """Guards predictions: from the first token on, after a divergence, and never into the separator."""
    prompt, expected = [1, 2, 3, 4], [20, 21, 22, 23, 24, 25, 26]

    def after(answer, gamma=4):
        draft, _, _ = look_up([*prompt, *answer], gamma, kind, expected, prompt=len(prompt))
        assert draft.predicted == tuple(range(len(draft.tokens)))
        return list(draft.tokens)

    assert after([]) == [20, 21, 22, 23]
    assert after([20]) == [21, 22, 23, 24]
    assert after([20, 21, 50]) == []
    assert after([20, 21, 50, 23]) == [24, 25, 26]  # it ends with the prediction
    assert after(expected) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_that_stands_in_the_text_is_not_counted_as_predicted(kind):
    """Guards the report: what was copied from the text itself is not the prediction's."""
    draft, _, _ = look_up([1, 2, 3, 9, 1, 2], 2, kind, prediction=[30, 31], prompt=6)
    assert (draft.tokens, draft.predicted) == ((30, 31), (0, 1))  # here the answer begins
    draft, _, _ = look_up([1, 2, 3, 9, 1, 2], 2, kind, prediction=[30, 31], prompt=3)
    assert (draft.tokens, draft.predicted) == ((3, 9), ())


@pytest.mark.parametrize("kind", KINDS)
def test_the_separator_is_never_drafted(kind):
    """Guards the border between prediction and prompt, as a sibling too."""
    tokens = [1, 2, 30, 31, 5, 30, 31, 6, 30, 31]
    draft, _, _ = look_up(tokens, 3, kind, prediction=[8, 30, 31], prompt=2, siblings=4)
    assert draft.tokens
    assert SEPARATOR not in draft.tokens


# -- laws -------------------------------------------------------------------------------------------------


class Predicting(Suffix):
    """Has a prediction for every text."""

    def begin(self, text):
        text.prediction = (1, 0, 2)
        super().begin(text)


@pytest.mark.parametrize("kind", [Suffix, Predicting])
@pytest.mark.parametrize("siblings", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_sampled_texts_have_the_plain_law(kind, siblings, seed):
    """Guards losslessness by enumeration of everything that chance decides, chains and trees."""
    runtime = MarkovRuntime(SIZE, 3, seed=seed)
    sampling, start, end = Sampling(1.0, repetition_penalty=1.3), ([0, 1, 0], 4), seed - 1
    hidden, _ = runtime.run(runtime.embed(range(SIZE)), LayerPlan.full(3), None, None)
    want = plain_law(lambda tokens: runtime.logits(hidden)[tokens[-1]].copy(), *start, sampling, lambda t: t == end)
    drafter = kind(SuffixOptions(gamma=3, siblings=siblings, adaptive=bool(seed % 2)), runtime.config)
    assert total_variation(want, loop_law(runtime, start, sampling, drafter, lambda t: t == end)) < 1e-12


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_match": 0}, "min_match is 0; it must be at least 1"),
        ({"corpus": 3}, "corpus is 3; it must be a list of files"),
        ({"corpus": [3]}, r"corpus is \[3\]"),
        ({"gamma": 65}, "gamma is 65"),
    ],
)
def test_wrong_options(options, words):
    """Guards the options: what was given, what is allowed."""
    with pytest.raises(OptionError, match=words):
        SuffixOptions(**options)


def test_a_corpus_needs_an_engine():
    """Guards tests and measurements that make drafters themselves: a corpus is not silently left out."""
    drafter = Suffix(SuffixOptions(corpus="a.txt"), TINY)
    with pytest.raises(AssertionError, match="not bound"):
        drafter.begin(text_of([1, 2, 1]))
