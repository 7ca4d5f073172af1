"""A tiny model on disk, and the command line in this process and in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

CONTEXT = 4096
SRC = Path(__file__).parents[2] / "src"
# A background shell starts its children with SIGINT ignored, and Python keeps that: undo it.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from selfspec.cli.main import run; run()"
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 259,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "eos_token_id": 257,
}


def write_tokenizer(folder):
    """Byte-level: token = byte, so that most tokens are parts of characters; with a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    names = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_model(folder, **changes):
    """A random Llama of the Hugging Face layout, without the ten seconds that importing transformers takes."""
    from safetensors.numpy import save_file

    from selfspec.model import config_from_hf, weight_shapes

    folder.mkdir()
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)
    weights = {
        name: np.ones(shape, np.float32) if len(shape) == 1 else random.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in weight_shapes(config_from_hf(config)).items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a model of four layers that answers in random bytes."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def call():
    """Run the command line in this process; gives click's result."""
    from selfspec.cli.main import cli

    def run(*args, text=None):
        return CliRunner().invoke(cli, [str(arg) for arg in args], input=text)

    return run


@pytest.fixture
def refused(call):
    """Run what must fail; gives the one line of the error after checking how it was reported."""

    def run(*args, text=None):
        result = call(*args, text=text)
        assert isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == 2
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("selfspec: error: ")
        return lines[0]

    return run


@pytest.fixture
def spawn():
    """Start the command line as a process of its own; whatever is left is killed after the test."""
    started = []

    def start(*args, **pipes):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes
        environment = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PROGRAM, *map(str, args)]
        started.append(subprocess.Popen(command, env=environment, bufsize=0, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()
