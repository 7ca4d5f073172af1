"""What a drafter gets from its engine: `Drafter.bind`, and models that are opened once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from doubles import tiny_runtime

import selfspec
from selfspec import drafters
from selfspec.drafters.base import Drafter, DraftOptions
from selfspec.errors import ModelNotFoundError, OptionError
from selfspec.types import Draft


@dataclass(frozen=True)
class CuriousOptions(DraftOptions):
    """`DraftOptions`."""


class Curious(Drafter):
    """Keeps the hosts that it was bound to."""

    Options = CuriousOptions
    name = "curious"

    def __init__(self, options, config):
        super().__init__(options, config)
        self.hosts = []

    def bind(self, host):
        self.hosts.append(host)

    def propose(self, context, texts, gammas):
        assert self.hosts
        return [Draft() for _ in texts]


def test_the_engine_binds_every_drafter_before_it_drafts(tiny):
    """Guards the seam by which drafters get a tokenizer, a fingerprint and other models."""
    engine = selfspec.load(tiny)
    drafter = Curious(CuriousOptions(), engine.config)
    assert drafter.hosts == []
    engine.generate("hi", draft=drafter, max_new_tokens=3)
    assert drafter.hosts
    for host in drafter.hosts:
        assert (host.runtime, host.tokenizer) == (engine.runtime, engine.tokenizer)
        assert host.fingerprint == engine.fingerprint != ""


def test_a_drafter_without_an_engine_is_not_bound():
    """Guards tests and measurements that make drafters themselves."""
    drafter = Curious(CuriousOptions(), tiny_runtime().config)
    assert drafters.create(drafter, drafter.config, {}) is drafter
    assert drafter.hosts == []


def test_a_model_is_opened_once_and_freed_with_its_engine(tiny):
    """Guards that requests, batches and drafters share the weights."""
    engine = selfspec.load(tiny)
    own = engine.open_model(bits=8)
    assert own is engine.open_model(bits=8)
    assert own.runtime is not engine.runtime
    assert own.runtime.config == engine.config
    assert (own.runtime.precision, own.tokenizer.vocab_size) == ("int8", engine.tokenizer.vocab_size)
    assert engine.open_model(tiny, bits=8) is not own  # it was not asked for by name before
    assert engine.open_model(runtime="torch", dtype="float64").runtime.precision == "float64"
    assert selfspec.load(tiny).open_model(bits=8).runtime is not own.runtime


def test_what_is_kept_is_made_once_for_an_engine(tiny):
    """Guards what is dear to make: drafters come and go with requests."""
    made = []

    def make():
        made.append(len(made))
        return made[-1]

    engines = [selfspec.load(tiny), selfspec.load(tiny)]
    assert [engine.kept("a", make) for engine in engines for _ in range(2)] == [0, 0, 1, 1]
    assert engines[0].kept("b", make) == 2


def test_models_that_cannot_be_opened(tiny, tmp_path):
    """Guards the errors: one line that says why."""
    engine = selfspec.load(tiny)
    with pytest.raises(ModelNotFoundError, match="no folder or file"):
        engine.open_model(str(tmp_path / "nothing"))
    with pytest.raises(OptionError, match=r"bits is for the cpu runtime and cannot go with runtime torch"):
        engine.open_model(runtime="torch", bits=4)
    bare = selfspec.Engine(tiny_runtime(), None, "bare")
    with pytest.raises(OptionError, match="bare was not loaded from files"):
        bare.open_model(tiny)
