"""The thread that learns beside an engine: bounded, quiet, saved, and never in the way."""

from __future__ import annotations

import gc
import os
import threading
import time

import numpy as np
import pytest
from doubles import tiny_core, tiny_runtime

from selfspec.drafters.early_exit import EarlyExitOptions
from selfspec.engine import Engine
from selfspec.errors import OptionError
from selfspec.learning.course import STEPS, Course
from selfspec.learning.learner import LearnSettings, Worker
from selfspec.learning.pace import Pace
from selfspec.learning.replay import LEAST
from selfspec.model.head_file import read_head

RANDOM = np.random.default_rng(0)


def made(runtime=None, **options):
    given = {"draft": "early_exit", "learn": True, "exit_layer": 2, "learn_share": 1.0, "gamma": 3}
    options = {name: value for name, value in (given | options).items() if value is not None}
    return Engine(runtime or tiny_core("fp32"), None, "tiny", **options)


def write(engine, texts=1, new=30, **options):
    """Texts of an engine; each is what plain decoding writes."""
    for _ in range(texts):
        prompt = [int(token) for token in RANDOM.integers(61, size=6)]
        plain = engine.generate(prompt, max_new_tokens=new, draft="plain", **options)
        assert engine.generate(prompt, max_new_tokens=new, **options).token_ids == plain.token_ids


def until(condition, seconds=30.0):
    """Wait for another thread; what never comes is a failure, however slow the machine is."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "selfspec-learner"]


@pytest.fixture(autouse=True)
def alone():
    """No thread goes on when a test has ended, however it has."""
    yield
    for worker in [found for found in gc.get_objects() if type(found) is Worker]:
        worker.close()
    assert not threads()


@pytest.mark.parametrize("make", [lambda: tiny_core("fp32"), lambda: tiny_core("int8"), tiny_runtime])
def test_an_engine_learns_while_it_writes(make):
    """Guards the way of the rows: from verifications into the buffer, and heads back into drafts."""
    engine = made(make())
    (learner,) = engine.learners
    assert learner.current.head.facts.taps == (2,)
    course, first = learner._worker.course, learner.current

    def tried():
        write(engine)
        return learner.facts()["failure"] or course.counts.kept + course.counts.thrown_away >= 2

    until(tried, 60.0)
    facts = learner.facts()
    assert facts["failure"] is None
    assert (learner.current is not first) == (facts["kept"] > 0)
    assert (facts["alpha"] > facts["first_alpha"]) == (facts["kept"] > 0)
    assert facts["steps"] >= 2 * STEPS
    assert facts["rows"] >= LEAST
    learner.close()
    assert not threads()


def test_every_committed_token_of_a_round_is_a_row():
    """Guards what is learned from: pending and accepted rows, with the states and laws of plain passes."""
    engine, taken = made(tiny_runtime()), []
    learner = engine.learners[0]
    worker = learner._worker
    learner.offer = lambda states, logits, temperature: taken.append((np.asarray(states), np.asarray(logits)))
    prompt = [5, 17, 3, 3, 42]
    found = engine.generate(prompt, max_new_tokens=25, gamma=4)
    assert worker.course.counts.rows == 0
    assert sum(len(states) for states, _ in taken) == 24  # the first token is that of the prefill
    assert [int(row.argmax()) for _, logits in taken for row in logits] == list(found.token_ids[1:])
    import head_oracle

    (states,) = head_oracle.target_states(engine.runtime, [*prompt, *found.token_ids], (2,))
    assert np.abs(np.concatenate([s for s, _ in taken]) - states[5:29]).max() < 1e-9


def test_others_that_draft_teach_it_too():
    """Guards "every verification": a look-up's drafts, and none, bring rows like its own."""
    engine = made(tiny_runtime(), draft="ngram>early_exit:learn=on:exit_layer=2", **NOTHING)
    write(engine, 2, repetition_penalty=1.0)
    until(lambda: engine.learners[0].facts()["rows"] + engine.learners[0].facts()["dropped"] == 2 * 29)
    assert made(draft="auto", candidates=("ngram", "early_exit:learn=on:exit_layer=2"), **NOTHING).learners


NOTHING = {"learn": None, "exit_layer": None, "learn_share": None, "gamma": 4}


def test_one_engine_has_one_learner():
    """Guards requests, each of which makes a drafter: they share what is learned, and other options do not."""
    engine = made()
    before = engine.learners
    write(engine, 2)
    list(engine.batch([[1, 2], [3, 4], [5]], slots=2, max_new_tokens=4))
    assert engine.learners == before
    engine.generate([1, 2], max_new_tokens=2, exit_layer=3)
    assert len(engine.learners) == 2


def test_what_waits_is_bounded():
    """Guards memory: while the learner has no time, rows are dropped and counted, and texts go on."""
    engine = made(learn_memory=1)
    learner = engine.learners[0]
    worker = learner._worker
    worker._thread = threading.Thread()  # none that takes anything
    limit = (1 << 20) // 4
    each = (61 + 32) * 4
    for _ in range(2 * limit // each // 29 + 1):
        write(engine)
        assert worker._waiting_bytes <= limit
        assert sum(rows.nbytes for rows in worker._waiting) == worker._waiting_bytes
    assert learner.facts()["dropped"] > 0
    worker._thread = None
    assert learner.nbytes >= 1 << 19


def test_its_share_is_kept_by_waiting(monkeypatch):
    """Guards the engine: after every piece of work the thread waits as long as its pace says."""
    worker, waits, clock, cpu = made(learn_share=0.25).learners[0]._worker, [], [0.0], [0.0]

    class Closing:
        def is_set(self):
            return len(waits) >= 50

        def wait(self, seconds):
            waits.append(seconds)
            clock[0] += seconds

        def set(self):
            pass

    def pieces():
        while True:
            clock[0] += 0.01
            cpu[0] += 0.01
            yield True

    worker._closing = Closing()
    worker.pace = Pace(0.25, 1, lambda: clock[0], lambda: cpu[0])
    monkeypatch.setattr(worker, "pieces", pieces)
    worker._work()
    worker._closing = threading.Event()
    assert waits == pytest.approx([0.03] * 50)


@pytest.mark.parametrize("where", ["take", "work", "attach"])
def test_a_failure_ends_learning_and_nothing_else(monkeypatch, where):
    """Guards generations: whatever goes wrong in the thread is told once, and the head goes on drafting."""
    told = []
    engine = Engine(
        tiny_core("fp32"), None, "tiny", notify=told.append, draft="early_exit", learn=True, exit_layer=2
    )
    learner = engine.learners[0]

    def broken(*_):
        raise RuntimeError("it broke\nbadly")

    if where == "attach":
        learner._worker._attach = broken
        monkeypatch.setattr(Course, "work", lambda self: iter([self._use(self.head)]))
        monkeypatch.setattr(Course, "has_work", property(lambda self: self.counts.rows > 0))
    else:
        monkeypatch.setattr(Course, where, broken)
        monkeypatch.setattr(Course, "has_work", property(lambda self: where == "work"))
    write(engine)
    until(lambda: learner.facts()["failure"] is not None)
    write(engine, 3)
    assert len(told) == 1
    assert "it broke badly" in told[0]
    assert not learner._worker._waiting
    learner.close()


def test_a_listener_that_fails_is_no_failure_of_texts():
    """Guards who is told: a notify that raises ends nothing."""

    def broken(_line):
        raise RuntimeError

    engine = Engine(tiny_core("fp32"), None, "tiny", notify=broken, draft="early_exit", learn=True, exit_layer=2)
    engine.learners[0]._worker.pieces = lambda: iter(())  # the thread meets StopIteration
    write(engine)
    until(lambda: engine.learners[0].facts()["failure"] is not None)
    write(engine)


def test_it_ends_with_its_engine():
    """Guards threads: an engine that nobody has any more leaves none behind."""
    engine = made()
    write(engine)
    assert len(threads()) == 1
    del engine
    gc.collect()
    assert not threads()


def test_closing_joins_the_thread_and_texts_go_on():
    """Guards shutdown: close returns when the thread has ended, twice is as good as once."""
    engine = made()
    write(engine)
    learner = engine.learners[0]
    learner.close()
    assert not threads()
    learner.close()
    rows = learner.facts()["rows"]
    write(engine)
    assert learner.facts()["rows"] == rows
    assert not threads()


def learned(engine):
    """A head that is other than at the beginning, as if it had been kept."""
    worker = engine.learners[0]._worker
    head = worker.current.head
    weights = {**head.weights, "transform.weight": head.weights["transform.weight"] + np.float32(0.01)}
    worker._use(type(head)(head.facts, weights, np.arange(2, 50)))
    worker.course.counts.kept += 1
    return worker.current.head


def test_what_was_learned_goes_on_next_time(tmp_path):
    """Guards --learn-out: at the end the head is in its file, whole, and the next engine begins with it."""
    out = tmp_path / "head.safetensors"
    engine = made(learn_out=str(out))
    write(engine)
    assert not out.exists()
    head = learned(engine)
    engine.learners[0].close()
    found = read_head(out)
    assert (found.weights["transform.weight"] == head.weights["transform.weight"]).all()
    assert (found.vocabulary == head.vocabulary).all()
    assert sorted(tmp_path.iterdir()) == [out]
    again = made(head=str(out), exit_layer=None, learn_out=str(out))
    assert (again.learners[0].current.head.weights["transform.weight"] == head.weights["transform.weight"]).all()
    write(again, 2)
    again.learners[0].save(str(tmp_path / "other.safetensors"))
    assert (tmp_path / "other.safetensors").read_bytes() == out.read_bytes()


def test_a_file_that_cannot_be_written_is_told_and_the_old_one_stays(tmp_path, monkeypatch):
    """Guards a full disk: one line, no half-written file, and the head goes on."""
    out, told = tmp_path / "head.safetensors", []
    out.write_bytes(b"old")
    options = {"draft": "early_exit", "learn": True, "exit_layer": 2, "learn_out": str(out)}
    engine = Engine(tiny_core("fp32"), None, "tiny", notify=told.append, **options)
    learned(engine)

    def full(_file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    engine.learners[0].close()
    assert [path.name for path in tmp_path.iterdir()] == ["head.safetensors"]
    assert out.read_bytes() == b"old"
    assert len(told) == 1
    assert "No space left" in told[0]


def test_nothing_learned_writes_nothing(tmp_path):
    """Guards an old file: a run that learned nothing leaves it alone."""
    engine = made(learn_out=str(tmp_path / "head.safetensors"))
    write(engine)
    engine.learners[0].close()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_learns_by_itself(tmp_path):
    """Guards forks: the child has no thread and perhaps locked locks; it begins anew, and leaves the file alone."""
    out = tmp_path / "head.safetensors"
    engine = made(learn_out=str(out))
    write(engine)
    worker = engine.learners[0]._worker
    worker._lock.acquire()  # as the thread may hold it just then
    child = os.fork()
    if child == 0:
        code = 1
        try:
            write(engine)
            until(lambda: engine.learners[0].facts()["rows"] > 0)
            assert len(threads()) == 1
            learned(engine)
            worker.close()
            code = 2 if out.exists() or threads() else 0
        finally:
            os._exit(code)
    worker._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    write(engine)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"learn_share": 0.0}, "learn_share is 0.0"),
        ({"learn_share": 1.5}, "at most 1"),
        ({"learn_memory": 0}, "at least 1 MiB"),
        ({"exit_layer": "adaptive"}, "leave exit_layer out"),
        ({"exit_layer": 0}, "exit_layer is 0"),
        ({"exit_layer": 5}, "1 to 4"),
        ({"learn": False}, "give learn, too"),
        ({"learn_out": "/nowhere/head.safetensors"}, "its folder does not exist"),
        ({"learn_out": "/"}, "is a folder"),
    ],
)
def test_a_mistake_is_one_line(options, said):
    """Guards options: what was given, what is allowed, before anything is learned."""
    with pytest.raises(OptionError, match=said):
        made(**options)
    assert not threads()


def test_a_head_with_attention_does_not_learn(tmp_path):
    """Guards --head: only linear heads have gradients here."""
    from random_heads import nearly_untrained, random_facts

    from selfspec.model.head_file import write_head

    path = tmp_path / "attention.safetensors"
    write_head(path, nearly_untrained(tiny_runtime(), random_facts("exit_head", "attention", taps=(2,))))
    with pytest.raises(OptionError, match="only linear ones learn"):
        made(head=str(path), exit_layer=None)


def test_a_wide_model_needs_room():
    """Guards the buffer of large models: too little memory is said, with how much is enough."""
    with pytest.raises(OptionError, match="give at least") as error:
        LearnSettings(memory=1).sizes(4096)
    least = int(str(error.value).split()[-1])
    LearnSettings(memory=least).sizes(4096)


def test_requests_of_strangers_cannot_learn():
    """Guards a server: a request may not start threads or write files."""
    opens = {f.name for f in EarlyExitOptions.__dataclass_fields__.values() if f.metadata.get("opens")}
    assert {"learn", "learn_share", "learn_memory", "learn_out"} <= opens
