"""Tiny models are fastest on one thread, and test workers share the cores."""

from __future__ import annotations

import os

import pytest
import torch
from browser import chromium, visit  # noqa: F401 (fixtures)
from tiny_folder import write_model

import selfspec

torch.set_num_threads(1)


def pytest_configure(config):
    """What tests convert stays out of the user's own cache; it is kept from run to run."""
    if cache := getattr(config, "cache", None):
        os.environ.setdefault("SELFSPEC_CACHE", str(cache.mkdir("models")))


def pytest_addoption(parser):
    """Held-back prompts for the slow tests."""
    parser.addoption("--data", default=None, help="JSON lines of prompts (fields task, turns) for -m slow")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a model of four layers that answers in random bytes."""
    folder = write_model(tmp_path_factory.mktemp("models") / "tiny")
    selfspec.load(folder)  # packs it now, so that no test is the first to say so
    return folder
