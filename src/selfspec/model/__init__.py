"""From a checkpoint to a configuration, a tokenizer, and checked weight files.

Architectures are data (`families`); GGUF files become ordinary Hugging Face folders once (`gguf`, `cache`).
"""

from selfspec.model.checkpoint import Checkpoint
from selfspec.model.config import ModelConfig, Rope
from selfspec.model.embedded import EMBEDDED, find_embedded, install_command
from selfspec.model.families import config_from_hf, gguf_names, weight_shapes
from selfspec.model.load import config_of, find_checkpoint
from selfspec.model.textstream import TextStream
from selfspec.model.tokenizer import Tokenizer

__all__ = [
    "EMBEDDED",
    "Checkpoint",
    "ModelConfig",
    "Rope",
    "TextStream",
    "Tokenizer",
    "config_from_hf",
    "config_of",
    "find_checkpoint",
    "find_embedded",
    "gguf_names",
    "install_command",
    "weight_shapes",
]
