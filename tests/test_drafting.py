"""What each drafter proposes, when it stops, and how drafters are found."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from itertools import pairwise
from types import SimpleNamespace

import pytest
from doubles import TINY, run

from selfspec import drafters
from selfspec.context import Text
from selfspec.drafters.base import DraftOptions
from selfspec.drafters.buffers import draft_buffers
from selfspec.drafters.confidence import ConfidenceStop
from selfspec.drafters.lookup import MARGIN
from selfspec.drafters.ngram import Ngram, NgramOptions
from selfspec.drafters.trust import Evidence, Kind, Trust, agreement, kind_of
from selfspec.errors import OptionError
from selfspec.measure.toy import MarkovRuntime
from selfspec.runtime.costs import PassCosts
from selfspec.sampling import Chance
from selfspec.types import Sampling


def text_of(tokens, limit=1000):
    return Text(0, 0, list(tokens), limit, Sampling(), Chance(0), lambda _: False)


def context_of(costs):
    """All that a look-up needs to know of the model."""
    return SimpleNamespace(runtime=SimpleNamespace(costs=costs))


def look_up(tokens, gamma=4, config=TINY, limit=1000, **options):
    """A draft whatever it costs."""
    drafter = Ngram(NgramOptions(**{"adaptive": False} | options), config)
    drafter.begin(text := text_of(tokens, limit))
    return drafter.propose(context_of(PassCosts()), [text], [gamma])[0]


def proposal(tokens, gamma=4, config=TINY, **options):
    return list(look_up(tokens, gamma, config, **options).tokens)


@pytest.mark.parametrize(
    ("tokens", "options", "want"),
    [
        ([1, 2, 3, 4, 9, 1, 2], {}, [3, 4, 9, 1]),
        ([1, 2, 3, 4, 9, 1, 2], {"gamma": 2}, [3, 4]),
        ([1, 2, 3, 7, 8, 2, 5, 1, 2], {}, [3, 7, 8, 2]),  # the longer match wins
        ([1, 2, 3, 1, 2, 4, 1, 2], {}, [4, 1, 2, 4]),  # the later place wins; past the end it repeats itself
        ([5, 6, 7, 8], {}, []),
        ([5], {}, []),
        ([5, 5], {}, [5, 5, 5, 5]),
        ([5, 5], {"min_ngram": 2}, []),
        ([5, 5, 5], {"min_ngram": 2}, [5, 5, 5, 5]),
        ([1, 2, 3, 1], {}, [2, 3, 1, 2]),
        ([1, 2, 3, 1], {"min_ngram": 2}, []),
        ([1, 2, 3, 4, 9, 1, 2], {"gamma": 0}, []),
    ],
)
def test_look_up(tokens, options, want):
    """Guards longest match first, latest place, the cut at γ, and short texts."""
    gamma = options.pop("gamma", 4)
    assert proposal(tokens, gamma, **options) == want


def test_look_up_stops_at_end_of_text():
    """Guards a candidate with an end-of-text token inside: nothing is drafted past it."""
    from dataclasses import replace

    config = replace(TINY, eos_token_ids=(4,))
    assert proposal([1, 2, 3, 4, 9, 1, 2], config=config) == [3, 4]


def test_look_up_confidence():
    """Guards the estimate: agreeing places and a long match raise it, disagreement lowers it."""
    disagree = [1, 2, 3, 1, 2, 4, 1, 2]  # two tokens match, one place of two goes on with a 4
    once = [1, 2, 3, 9, 1, 2]  # two tokens match, in one place
    longer = [7, 1, 2, 3, 9, 7, 1, 2]
    agree = [1, 2, 3, 5, 1, 2, 3, 4, 1, 2]
    assert proposal(disagree, confidence=0.21) == []
    assert proposal(disagree, confidence=0.19) != []
    assert proposal(once, confidence=0.53) == [3, 9, 1, 2]
    assert proposal(once, confidence=0.55) == []
    assert proposal(longer, confidence=0.67) == [3, 9, 7, 1]
    assert proposal(longer, confidence=0.69) == []
    assert proposal(agree, confidence=0.77)[0] == 3
    assert proposal(agree, confidence=0.79) == []


def test_trust_kinds_and_counts():
    """Guards what is counted together, and that old tokens count less."""
    lengths = [kind_of(Evidence.ONLY, length).length for length in (1, 2, 3, 4, 5, 6, 11, 12, 99)]
    assert lengths == [0, 1, 2, 3, 3, 4, 4, 5, 5]
    votes = ((0, 1), (1, 1), (3, 3), (2, 3), (1, 2), (1, 3), (0, 2))
    assert [agreement(*vote) for vote in votes] == [0, 0, 1, 2, 3, 3, 3]
    trust, kind = Trust(), Kind(Evidence.ONLY, 2)
    before = trust.rate(kind)
    for _ in range(200):
        trust.learn(kind, False)
    assert trust.rate(kind) < 0.02 < before
    for _ in range(200):
        trust.learn(kind, True)
    assert trust.rate(kind) > 0.95
    assert Trust().rate(kind) == before, "texts do not share counts"


class Priced:
    """Costs of a line through v(1) = 1."""

    def __init__(self, slope):
        self.slope = slope

    def price(self, rows, texts):
        return self.slope * texts / (1 + self.slope * (texts - 1))


@pytest.mark.parametrize(("slope", "most"), [(0.0, 7), (0.1, 5), (0.2, 2), (0.3, 1), (0.4, 0)])
def test_a_draft_is_as_long_as_it_pays(slope, most):
    """Guards the economy: the dearer a row, the shorter the draft; rates 0.54, 0.68, 0.75, 0.75, 0.85, ..."""
    drafter = Ngram(NgramOptions(), TINY)
    drafter.begin(text := text_of([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2]))
    (draft,) = drafter.propose(context_of(Priced(slope)), [text], [7])
    expected, gain = 0, 1.0
    for rate in (0.54, 0.68, 0.75, 0.75, 0.85, 0.85, 0.85):
        gain *= rate
        if gain < MARGIN * slope:
            break
        expected += 1
    assert len(draft) == expected == most


def test_beside_many_texts_rows_are_dearer():
    """Guards batches: a pass over eight texts that fills the machine has no room for drafts."""

    def drafted(count):
        drafter = Ngram(NgramOptions(), TINY)
        texts = [text_of([1, 2, 3, 4, 5, 1, 2]) for _ in range(count)]
        for text in texts:
            drafter.begin(text)
        return [len(draft) for draft in drafter.propose(context_of(Priced(0.25)), texts, [4] * count)]

    assert min(drafted(1)) > 0
    assert drafted(8) == [0] * 8


def gives_up_and_comes_back(drafter, wrong, right):
    """At a price of 0.2 a drafter stops after so many wrong matches, and drafts again after right ones."""
    drafter.begin(text := text_of([1, 2, 3, 4, 5]))
    context, drafted = context_of(Priced(0.2)), []

    def turn(then):
        text.tokens += [1, 2]
        (draft,) = drafter.propose(context, [text], [4])
        drafted.append(len(draft))
        text.tokens += then
        drafter.observe(text, SimpleNamespace(tokens=then))

    for i in range(wrong):
        turn([10 + i])
    assert drafted[0] > 0
    assert drafted[-1] == 0
    for _ in range(right):
        turn([3, 4])
    assert drafted[-1] > 0


def test_wrong_matches_are_given_up_and_taken_up_again():
    """Guards learning from tokens that were not drafted: nothing is ever lost for good, and no probe is needed."""
    gives_up_and_comes_back(Ngram(NgramOptions(max_ngram=2, min_ngram=2), TINY), 30, 30)


@pytest.mark.parametrize(
    ("siblings", "want", "parents"),
    [
        (0, (4, 8, 1), None),
        (1, (4, 8, 1, 3), (-1, 0, 1, -1)),
        (2, (4, 8, 1, 3, 7), (-1, 0, 1, -1, -1)),
    ],
)
def test_look_up_siblings_are_other_continuations(siblings, want, parents):
    """Guards combs: at each depth what other places of the same n-gram went on with, the latest first."""
    tokens = [1, 2, 7, 1, 2, 3, 1, 2, 4, 8, 1, 2]
    draft = look_up(tokens, 3, siblings=siblings)
    assert (draft.tokens, draft.parents) == (want, parents)


def test_look_up_siblings_below_the_first_depth():
    """Guards the parent of a leaf: places that agree with the chain so far, and go on differently."""
    draft = look_up([1, 2, 3, 9, 1, 2, 3, 5, 1, 2], 3, siblings=4)
    assert (draft.tokens, draft.parents) == ((3, 5, 1, 9), (-1, 0, 1, 0))


def test_combs_thin_out_where_the_text_ends():
    """Guards the cells of the cache: a draft has no more tokens than the text has room for."""
    tokens = [1, 2, 7, 1, 2, 3, 1, 2, 4, 8, 1, 2]
    assert len(look_up(tokens, 3, limit=len(tokens) + 1 + 4, siblings=2)) == 4
    assert look_up(tokens, 3, limit=len(tokens) + 1 + 3, siblings=2).parents is None


def test_early_exit_siblings_are_the_next_best_and_sampled_ones_differ():
    """Guards the leaves of early exit: distinct tokens per level, with the laws they were drawn from."""
    seen = []

    class Seen(drafters.drafter_class("early_exit")):
        def propose(self, *given):
            seen.extend(super().propose(*given))
            return seen[-1:]

    runtime = MarkovRuntime(vocab_size=5)
    for sampling in (Sampling(), Sampling(1.0), Sampling(1.0, top_k=2)):
        seen.clear()
        drafter = Seen(Seen.Options(exit_layer=2, gamma=2, siblings=2), runtime.config)
        run(runtime, [[0]], drafter, sampling=sampling)
        draft = seen[0]
        most = sampling.top_k or 3
        assert draft.widths == (most, most)
        for parent in (-1, 0):
            level = [i for i, p in enumerate(draft.parents) if p == parent]
            assert len({draft.tokens[i] for i in level}) == most
            if sampling.is_greedy:
                assert draft.laws is None
            else:
                for before, after in pairwise(level):
                    assert draft.laws[after].probability(draft.tokens[before]) == 0.0
                    assert draft.laws[before].probability(draft.tokens[after]) > 0.0


def test_buffers_of_a_comb():
    """Guards the memory claim: leaves have distributions and logits, but no kept states."""
    cls = drafters.drafter_class("early_exit")
    drafter = cls(cls.Options(exit_layer=2, gamma=3, siblings=2), TINY)
    assert draft_buffers(TINY, drafter, Sampling(1.0), 8) == {
        "hidden = gamma * d": 3 * 32 * 8,
        "laws = gamma * (1 + siblings) * V": 9 * 61 * 8,
        "logits = gamma * (1 + siblings) * V": 9 * 61 * 8,
    }


def test_siblings_out_of_range_are_refused():
    """Guards the option: the value, what is allowed."""
    with pytest.raises(OptionError, match="siblings is 17; it must be 0"):
        NgramOptions(siblings=17)
    with pytest.raises(OptionError, match="siblings is -1"):
        NgramOptions(siblings=-1)


def test_the_threshold_follows_draft_and_verify():
    """Guards the controller: up while drafts are rejected, down while they hold, at rest at full length."""
    stop = ConfidenceStop(DraftOptions(gamma=4, confidence=0.5, adaptive=True))
    stop.observe(4, 4)
    assert stop.threshold == 0.5
    stop.observe(2, 2)
    assert stop.threshold == pytest.approx(0.499)
    stop.observe(4, 0)
    assert stop.threshold == pytest.approx(0.5)
    stop.observe(0, 0)
    assert stop.threshold == pytest.approx(0.499)
    for _ in range(2000):
        stop.observe(4, 0)
    assert stop.threshold == 1.0
    fixed = ConfidenceStop(DraftOptions(gamma=4, confidence=0.5))
    fixed.observe(4, 0)
    assert fixed.threshold == 0.5


def test_a_threshold_of_one_that_adapts_drafts_again():
    """Guards against a controller that stops itself for ever: without drafts it has nothing to learn from."""
    seen = []
    options = {"exit_layer": 2, "gamma": 2, "confidence": 1.0, "adaptive": True}
    run(
        MarkovRuntime(),
        [[0]],
        "early_exit",
        options,
        new_tokens=1000,
        each_round=lambda c, t, r: seen.append(r.commits[0].drafted),
    )
    assert seen[1] == 0
    assert any(seen)


def test_built_ins_come_through_the_door_for_plug_ins():
    """Guards the registry: names, classes and options of everything that is installed."""
    found = drafters.available()
    assert {"early_exit", "ngram", "plain", "scripted"} <= set(found)
    for name in found:
        assert drafters.drafter_class(name).name == name
        assert {"gamma", "confidence", "adaptive"} <= set(drafters.option_names(drafters.drafter_class(name)))


def entry(name, value):
    return EntryPoint(name, value, drafters.GROUP)


def test_two_drafters_of_one_name_are_refused(monkeypatch):
    """Guards against a plug-in that silently replaces a drafter."""
    both = [entry("ngram", "a:B"), entry("ngram", "c:D")]
    monkeypatch.setattr(drafters, "entry_points", lambda group: both)
    with pytest.raises(OptionError, match="two drafters are named 'ngram'"):
        drafters.available()


def test_a_drafter_that_was_found_is_not_looked_for_again(monkeypatch):
    """Guards the first token of every request: the metadata of all packages take longer than a pass to read."""
    found = [drafters.drafter_class(name) for name in ("ngram", "suffix", "staged")]
    monkeypatch.setattr(drafters, "entry_points", lambda group: pytest.fail(f"{group} is read again"))
    chain = drafters.create("ngram>suffix", TINY, {})
    assert [type(part) for part in chain.parts] == found[:2]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("no.such.module:Thing", "cannot be loaded: ModuleNotFoundError"),
        ("selfspec.types:Nothing", "cannot be loaded: AttributeError"),
        ("selfspec.types:Sampling", "is not a selfspec Drafter"),
    ],
)
def test_a_broken_plug_in_is_one_clear_error(monkeypatch, value, words):
    """Guards load(draft="broken"): the plug-in's own traceback is not the user's answer."""
    monkeypatch.setattr(drafters, "entry_points", lambda group: [entry("broken", value)])
    with pytest.raises(OptionError, match=words):
        drafters.drafter_class("broken")


def test_option_types_are_checked_with_and_without_string_annotations():
    """Guards plug-ins whose options are not under `from __future__ import annotations`."""
    from dataclasses import make_dataclass

    from selfspec.types import require_types

    for kind in (int, "int"):
        made = make_dataclass("Options", [("size", kind)], frozen=True)
        require_types(made(3))
        with pytest.raises(OptionError, match="size is 'x'; it must be an integer"):
            require_types(made("x"))
