"""A tuned draft is the default of its model on its machine, and of nothing else."""

from __future__ import annotations

import json

import pytest

import selfspec
from selfspec import tuned
from selfspec.errors import OptionError


@pytest.fixture
def home(tmp_path, monkeypatch, tiny):
    """A cache folder of its own."""
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path))
    selfspec.load(tiny, threads=1)  # packs it
    return tmp_path / "tuned"


@pytest.fixture
def lines():
    return []


@pytest.fixture
def loaded(home, tiny, lines):
    """Load the tiny model; ``lines`` are what was said."""
    return lambda **options: selfspec.load(tiny, **({"threads": 1} | options), notify=lines.append)


@pytest.fixture
def keep(loaded):
    """Write what a search would; gives the path."""

    def write(draft, uses_profile=False, **changes):
        engine = loaded(tuned=False)
        identity = {**tuned.facts_of(engine), "machine": dict(tuned.machine())}
        document = {
            "kind": "tune",
            "format": 1,
            "identity": identity,
            "choice": {"draft": draft, "uses_profile": uses_profile},
            "passes": [{"seconds": [1.0, 1.2]}],
            "exits": {},
        }
        path = tuned.file_for(engine)
        for name, value in changes.items():
            inner = document if name in document else identity if name in identity else identity["machine"]
            inner[name] = value
        tuned.save(document, path)
        return path

    return write


def drafter(engine, **options):
    return engine.generate("Hi", max_new_tokens=2, **options).draft


def test_it_drafts_where_nobody_says_anything_about_drafting(loaded, keep, lines):
    """Guards the order: a drafter that is named wins, an option of one is the default drafter's, and a prediction
    goes to who uses it; so no file can break a program that ran before."""
    assert drafter(loaded()) == "auto"
    keep("early_exit:exit_layer=2:gamma=3")
    engine = loaded()
    done = engine.generate("Hi", max_new_tokens=4)
    assert (done.draft, done.plan, done.gamma) == ("early_exit", "exit 2/4", 3)
    assert done.token_ids == engine.generate("Hi", max_new_tokens=4, draft="plain").token_ids
    assert drafter(engine, draft="auto") == "auto"
    assert drafter(engine, gamma=2) == "auto"
    assert drafter(engine, candidates="suffix") == "auto"
    assert drafter(engine, prediction="Ho") == "auto"
    assert engine.generate("Hi", max_new_tokens=2, draft="early_exit").gamma == 4, "a name means its defaults"
    assert [
        found.draft for _, found in engine.batch(["a", {"prompt": "b", "draft": "ngram"}], max_new_tokens=2)
    ] in (
        ["early_exit", "ngram"],
        ["ngram", "early_exit"],
    )
    assert engine.defaults["draft"] == "auto"
    for options in ({"draft": "suffix"}, {"gamma": 2}, {"tuned": False}):
        assert drafter(loaded(**options)) == options.get("draft", "auto")
    assert drafter(loaded(temperature=0.5)) == "early_exit"
    assert lines == []
    assert drafter(loaded(bits=8)) == "auto", "another precision is another target"
    assert not any("tune" in line for line in lines)


def test_a_prediction_stays_with_a_look_up(loaded, keep):
    """Guards predictions: a tuned drafter that uses one gets it; `auto` begins with the profile in the file."""
    keep("suffix:gamma=3")
    assert drafter(loaded(), prediction="Ho") == "suffix"
    path = keep("auto:candidates=(suffix)", uses_profile=True)
    engine = loaded()
    assert engine.tuned.options == {"profile": str(path)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"selfspec": "0.0.1"}, "another selfspec"),
        ({"fingerprint": "x"}, "another fingerprint"),
        ({"processor": "x"}, "another machine"),
        ({"format": 2}, "has format 2; this selfspec reads 1"),
        ({"kind": "profile"}, "it is damaged"),
        ({"choice": {"draft": "nobody", "uses_profile": False}}, "'nobody'"),
        ({"choice": {"draft": "early_exit:exit_layer=9", "uses_profile": False}}, "exit layer is 9"),
        ({"choice": {"draft": 3, "uses_profile": False}}, "damaged"),
    ],
)
def test_what_does_not_fit_is_left_out_in_a_line(loaded, keep, lines, changes, words):
    """Guards stale and foreign files: the default drafts, and one line says why and what to do."""
    keep("suffix", **changes)
    assert drafter(loaded()) == "auto"
    assert len(lines) == 1
    assert words in lines[0]
    assert lines[0].endswith("run selfspec tune again")
    assert "\n" not in lines[0]


def test_damaged_files_and_other_threads(loaded, keep, home, lines):
    """Guards what lies in the folder: half a file, no text at all, a folder of that name, and a file of other
    threads; each is a line, none an error."""
    path = keep("suffix")
    assert drafter(loaded(threads=2)) == "auto"
    assert "with other threads" in lines.pop()
    for content in (path.read_text()[:40], "[1]", "\ud800"):
        path.write_text(content, encoding="utf-8", errors="surrogatepass")
        assert drafter(loaded()) == "auto"
        assert "damaged" in lines.pop()
    path.unlink()
    path.mkdir()
    assert drafter(loaded()) == "auto"
    assert "cannot be read" in lines.pop()
    assert lines == []
    path.rmdir()
    keep("suffix")
    assert [p.name for p in tuned.forget(loaded(tuned=False))] == [path.name]
    assert list(home.iterdir()) == []
    assert drafter(loaded()) == "auto"


def test_a_model_object_and_a_folder_that_cannot_be_written(loaded, home, monkeypatch):
    """Guards saving: nothing is kept under an empty name, and a refusal leaves no half of a file."""
    engine = loaded()
    path = tuned.file_for(engine)
    home.parent.joinpath("file").write_text("")
    with pytest.raises(OptionError, match="cannot be written"):
        tuned.save({}, home.parent / "file" / path.name)
    assert not home.exists()
    tuned.save({"a": float("nan")}, path)
    assert json.loads(path.read_text()) == {"a": None}
    assert list(home.iterdir()) == [path], "nothing is left aside"
    monkeypatch.setattr(engine, "fingerprint", "")
    with pytest.raises(OptionError, match="model object"):
        tuned.file_for(engine)
    assert tuned.find_tuned(engine) is None
    assert json.dumps(tuned.facts_of(engine))
