"""The corpus: order and search against brute force, its files, its index on disk, and the drafter with one."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import selfspec
from selfspec.drafters import corpus as module
from selfspec.drafters.corpus import DEPTH, MOST_PLACES, Corpus, ordered
from selfspec.drafters.corpus_files import open_corpus
from selfspec.drafters.trust import Evidence
from selfspec.errors import ModelError, OptionError
from selfspec.model.tokenizer import Tokenizer


def indexed(tokens, separator):
    array = np.asarray(tokens, dtype=np.uint32)
    return Corpus(array, ordered(array, separator), separator)


def context(tokens, place):
    return tokens[:place][::-1][:DEPTH]


def shared(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def check(separator, tokens, text):
    """Every place is there, in the order of contexts; the longest match is found, with many of its places."""
    corpus = indexed(tokens, separator)
    places = [i for i in range(1, len(tokens)) if separator not in (tokens[i], tokens[i - 1])]
    order = corpus._order.tolist()
    assert sorted(order) == places
    contexts = [context(tokens, place) for place in order]
    assert contexts == sorted(contexts)
    lengths = {place: shared(context(tokens, place), text[::-1][:DEPTH]) for place in places}
    length, found = corpus.find(text)
    assert length == max(lengths.values(), default=0)
    best = [place for place in places if lengths[place] == length > 0]
    assert set(found) <= set(best)
    assert len(set(found)) == len(found) >= min(len(best), MOST_PLACES // 2)


@st.composite
def searches(draw):
    separator = draw(st.sampled_from([1, 2, 3, 40, 49152, 2**18]))
    token = st.integers(max(0, separator - 4), separator)
    text = st.integers(max(0, separator - 4), separator - 1)
    return separator, draw(st.lists(token, min_size=1, max_size=120)), draw(st.lists(text, min_size=1, max_size=50))


@settings(max_examples=150, deadline=None)
@given(searches())
def test_it_is_brute_force(given_):
    """Guards the sort and the binary search, for vocabularies of all widths, and texts longer than the depth."""
    check(*given_)


def test_a_wrong_order_is_seen(monkeypatch):
    """The negative control: an order by the first tokens only."""
    tokens = [1, 2, 3, 4, 5, 6, 7, 8] * 2 + [2, 3, 4, 5, 6, 7, 8, 1] * 3
    check(49152, tokens, [3, 4, 5])
    monkeypatch.setattr(module, "DEPTH", 1)
    with pytest.raises(AssertionError):
        check(49152, tokens, [3, 4, 5])


# -- files ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return Tokenizer.from_folder(Path(tiny))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache of its own."""
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def opened(files, tokenizer, told=None):
    return open_corpus([str(file) for file in files], tokenizer, 400, (told if told is not None else []).append)


def texts_of(corpus):
    found, text = [], []
    for token in corpus.tokens.tolist():
        if token == corpus.separator:
            found.append(text)
            text = []
        else:
            text.append(token)
    return found


def test_files_of_every_kind_are_one_corpus(home, tmp_path, tokenizer):
    """Guards the formats, and that texts stay apart."""
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    (tmp_path / "a.txt").write_text("\ufeffhello\nthere" * 3, encoding="utf-8")
    lines = [{"text": "one"}, {"messages": chat}, {"id": 7, "text": "of a batch", "token_ids": [5, 6, 7]}]
    (tmp_path / "b.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    np.save(tmp_path / "c.npy", np.array([9, 8, 7]))
    corpus = opened([tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "c.npy"], tokenizer)
    want = [
        tokenizer.encode("hello\nthere\ufeffhello\nthere\ufeffhello\nthere", add_special_tokens=False),
        tokenizer.encode("one", add_special_tokens=False),
        tokenizer.encode_chat(chat, add_generation_prompt=False),
        [5, 6, 7],
        [9, 8, 7],
    ]
    assert texts_of(corpus) == want


def test_a_long_text_is_tokenised_in_pieces_and_nothing_is_lost(home, tmp_path, tokenizer, monkeypatch):
    """Guards the cuts: after lines, and in a line that is too long."""
    monkeypatch.setattr("selfspec.drafters.corpus_files._PIECE", 10)
    monkeypatch.setattr("selfspec.drafters.corpus_files._TOGETHER", 3)
    text = "ab\ncdef ghij klmno pqrst\n\nuv\n" * 5
    (tmp_path / "a.txt").write_text(text)
    (tokens,) = texts_of(opened([tmp_path / "a.txt"], tokenizer))
    assert tokenizer.decode(tokens) == text


def test_an_index_is_made_once_and_anew_when_anything_changes(home, tmp_path, tokenizer):
    """Guards the key: contents of the files and what they become; not their names or dates."""
    told, file = [], tmp_path / "a.txt"
    file.write_text("abc abc")
    opened([file], tokenizer, told)
    made = len(told)
    assert made >= 1
    opened([file.rename(tmp_path / "renamed.txt")], tokenizer, told)
    assert len(told) == made
    (tmp_path / "renamed.txt").write_text("abc abd")
    opened([tmp_path / "renamed.txt"], tokenizer, told)
    assert len(told) == 2 * made
    assert len({entry.name for entry in home.iterdir() if entry.is_dir()}) == 2


def test_another_tokenizer_has_another_index(home, tmp_path, tokenizer):
    """Guards the key: token ids of another vocabulary would be nonsense; so would another chat template."""
    (tmp_path / "a.txt").write_text("abc abc")
    opened([tmp_path / "a.txt"], tokenizer)
    opened([tmp_path / "a.txt"], Tokenizer(tokenizer._backend))
    assert len([entry for entry in home.iterdir() if entry.is_dir()]) == 2


def test_a_damaged_index_is_made_anew_and_it_is_said(home, tmp_path, tokenizer):
    """Guards against drafts from a torn file, and against a crash."""
    (tmp_path / "a.txt").write_text("hello hello")
    want = opened([tmp_path / "a.txt"], tokenizer).tokens.tolist()
    (entry,) = (path for path in home.iterdir() if path.is_dir())
    for damage in (lambda f: f.write_bytes(f.read_bytes()[:-4]), lambda f: f.write_bytes(bytes(f.stat().st_size))):
        for name in ("order.npy", "tokens.npy"):
            told = []
            damage(entry / name)
            assert opened([tmp_path / "a.txt"], tokenizer, told).tokens.tolist() == want
            assert "damaged" in told[0]


def test_two_processes_at_once(home, tmp_path, tiny):
    """Guards the lock: both get the index, one makes it, nothing is left over."""
    (tmp_path / "a.txt").write_text("hello hello\n" * 2000)
    code = (
        "import sys; from pathlib import Path; from selfspec.model.tokenizer import Tokenizer; "
        "from selfspec.drafters.corpus_files import open_corpus; t = Tokenizer.from_folder(Path(sys.argv[1])); "
        "print(len(open_corpus([sys.argv[2]], t, 400, lambda _: None)))"
    )
    command = [sys.executable, "-c", code, str(tiny), str(tmp_path / "a.txt")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    sizes = [process.communicate(timeout=120)[0] for process in started]
    assert sizes[0] == sizes[1] != ""
    assert len([entry for entry in home.iterdir() if entry.is_dir()]) == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.txt", None, "cannot be read: No such file"),
        ("a.txt", b"", "has no text"),
        ("a.jsonl", b"\n\n", "has no text"),
        ("a.txt", b"\xff\xfe", "is not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{', "line 2 of .* is not JSON"),
        ("a.jsonl", b'{"txt": "a"}', "line 1 of .* has no text; it must be an object with"),
        ("a.jsonl", b"[]", "has no text"),
        ("a.jsonl", b'{"text": 5}', "a text that is not one: 5"),
        ("a.jsonl", b'{"text": "\\ud800"}', "line 1 of .* cannot be used"),
        ("a.jsonl", b'{"messages": "hi"}', "line 1 of .* cannot be used"),
        ("a.jsonl", b'{"token_ids": [1, 400]}', "has the token 400; this model's tokens are 0 to 399"),
        ("a.jsonl", b'{"token_ids": [true]}', "has the token True"),
        ("a.jsonl", b'{"token_ids": "12"}', "token_ids that are not a list"),
        ("a.npy", b"no array", "cannot be read"),
    ],
)
def test_what_cannot_be_a_corpus(home, tmp_path, tokenizer, name, content, words):
    """Guards the errors: one line with the file, and nothing half-made is left."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match=words) as caught:
        opened([tmp_path / name], tokenizer)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)
    assert not home.exists() or not [entry for entry in home.iterdir() if entry.is_dir()]


def test_a_corpus_of_one_token(home, tmp_path, tokenizer):
    """Guards the smallest index, which has no places."""
    (tmp_path / "a.txt").write_text("a")
    corpus = opened([tmp_path / "a.txt"], tokenizer)
    assert (len(corpus), corpus.find(corpus.tokens.tolist()[:1])) == (2, (0, []))


def test_more_that_cannot_be_a_corpus(home, tmp_path, tokenizer, monkeypatch):
    """Guards arrays of another shape, text without a tokenizer, and a cache that cannot be written."""
    np.save(tmp_path / "flat.npy", np.zeros((2, 2), dtype=np.int64))
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    with pytest.raises(OptionError, match="one-dimensional array of token ids"):
        opened([tmp_path / "flat.npy"], tokenizer)
    for name in ("a.txt", "a.jsonl"):
        with pytest.raises(OptionError, match="there is no tokenizer"):
            opened([tmp_path / name], None)
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path / "a.txt" / "sub"))
    with pytest.raises(ModelError, match="cannot write the cache folder"):
        opened([tmp_path / "a.txt"], tokenizer)


def test_arrays_that_lie_are_one_line(home, tmp_path, tokenizer):
    """A head that says 2^40 numbers asked for their memory; pickled objects came with advice to load them."""
    np.save(tmp_path / "a.npy", np.zeros(8, dtype=np.int64))
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(data.replace(b"(8,), }            ", b"(1099511627776,), }"))
    assert (tmp_path / "a.npy").read_bytes() != data
    np.save(tmp_path / "b.npy", np.zeros(1, dtype=object))
    (tmp_path / "c.npy").write_bytes(pickle.dumps([1, 2]))
    for name, words in (("a", "cannot be read"), ("b", "cannot be read"), ("c", "which are never loaded")):
        with pytest.raises(OptionError, match=words) as caught:
            opened([tmp_path / f"{name}.npy"], tokenizer)
        assert "allow_pickle" not in str(caught.value)


# -- the drafter ------------------------------------------------------------------------------------------


def test_drafts_come_from_the_corpus(tmp_path, tiny):
    """Guards the way from the option to accepted tokens: same text, fewer rounds; the index is mapped once."""
    engine = selfspec.load(tiny, draft="plain", max_new_tokens=40, ignore_eos=True)
    plain = engine.generate("hello")
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps({"token_ids": plain.token_ids}))  # the same in every run, so one index
    alone = engine.generate("hello", draft="suffix", adaptive=False)
    done = engine.generate("hello", draft="suffix", adaptive=False, corpus=[str(file)])
    assert done.token_ids == alone.token_ids == plain.token_ids
    assert done.stats.rounds < 0.5 * alone.stats.rounds
    file.unlink()  # the engine keeps it
    assert (
        engine.generate("hello", draft="suffix", adaptive=False, corpus=(str(file),)).stats.rounds
        == done.stats.rounds
    )
    for _, result in engine.batch(["hello"] * 2, draft="suffix", adaptive=False, corpus=[str(file)]):
        assert result.token_ids == plain.token_ids


def test_a_missing_corpus_is_an_error_before_anything_runs(tiny):
    """Guards loading: the engine says it at once."""
    with pytest.raises(OptionError, match=r"the corpus file 'nowhere.txt' cannot be read"):
        selfspec.load(tiny, draft="suffix", corpus=["nowhere.txt"])


def test_text_and_corpus_compete():
    """Guards the choice: the chain is drafted that is expected to add more, and both are learned from."""
    from doubles import TINY
    from test_drafting import context_of, text_of

    from selfspec.drafters.suffix import Suffix, SuffixOptions
    from selfspec.runtime.costs import PassCosts

    corpus = indexed([10, 11, 12, 13, 14, 15, 99, 50, 51], 99)

    def draft(tokens):
        drafter = Suffix(SuffixOptions(adaptive=False, corpus="given"), TINY)
        drafter._corpus = corpus
        drafter.begin(text := text_of(tokens))
        (made,) = drafter.propose(context_of(PassCosts()), [text], [3])
        kinds = [chain[0].kind.evidence for _, chain in drafter._memories[text].considered if chain]
        return list(made.tokens), kinds

    both = [Evidence.ONLY, Evidence.CORPUS_ONLY]
    assert draft([1, 10, 11, 12, 13]) == ([14, 15], [Evidence.CORPUS_ONLY])  # no further: another text begins
    assert draft([13, 7, 1, 10, 11, 12, 13]) == ([14, 15], both)  # four tokens match there, one here
    assert draft([8, 11, 12, 13, 7, 6, 5, 8, 11, 12, 13]) == ([7, 6, 5], both)
    assert draft([1, 50]) == ([51], [Evidence.CORPUS_ONLY])
    assert draft([1, 15]) == ([], [])
