"""Tiny models are fastest on one thread, and test workers share the cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)


def pytest_addoption(parser):
    """Held-back prompts for the slow tests."""
    parser.addoption("--data", default=None, help="JSON lines of prompts (fields task, turns) for -m slow")
