"""Tiny models are fastest on one thread, and test workers share the cores."""

from __future__ import annotations

import pytest
import torch
from tiny_folder import write_model

torch.set_num_threads(1)


def pytest_addoption(parser):
    """Held-back prompts for the slow tests."""
    parser.addoption("--data", default=None, help="JSON lines of prompts (fields task, turns) for -m slow")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a model of four layers that answers in random bytes."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny")
