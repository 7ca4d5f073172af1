import os
import subprocess
import sys

import pytest

from selfspec.errors import ModelNotFoundError, UnsupportedModelError
from selfspec.model import config_of, find_checkpoint, hub
from selfspec.model.hub import is_hub_id


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("nothing-like-it", ("nothing-like-it", "smollm2-135m", "hub id")),
        ("./missing/folder", ("./missing/folder",)),
        ("models/missing.gguf", ("models/missing.gguf",)),
        ("line\nbreak", ("line\\nbreak",)),
        ("", ("give smollm2-135m",)),
        (None, ("None",)),
        (3, ("3",)),
    ],
)
def test_not_found(model, parts, refused):
    """What is allowed is said, whatever was given."""
    for function in (find_checkpoint, config_of):
        with refused(ModelNotFoundError, *parts):
            function(model)


def test_wrong_files(plain, tmp_path, refused):
    """A weight file instead of its folder is a common mistake."""
    with refused(ModelNotFoundError, "give its folder"):
        find_checkpoint(plain / "model.safetensors")
    (tmp_path / "model.bin").write_bytes(b"x")
    with refused(UnsupportedModelError, "model.bin"):
        find_checkpoint(tmp_path / "model.bin")


def test_home_folder(plain, monkeypatch):
    """~ is not expanded by a shell inside quotes."""
    monkeypatch.setenv("HOME", str(plain.parent))
    assert find_checkpoint("~/plain").name == "plain"


def test_hub_ids():
    """Paths must not be looked up on the internet."""
    assert is_hub_id("HuggingFaceTB/SmolLM2-135M")
    for text in ("a", "./a/b", "../b", "/a/b", "a/b/c", "a/b ", "a//b", "~/a", "a\\b/c", ""):
        assert not is_hub_id(text)


def errors():
    from huggingface_hub import errors as hub_errors

    def http(kind):
        error = kind.__new__(kind)
        Exception.__init__(error, "401 Client Error.\n\nsecond line")
        return error

    return {
        "gated": (http(hub_errors.GatedRepoError), "accept its terms"),
        "unknown": (http(hub_errors.RepositoryNotFoundError), "check the spelling"),
        "offline": (http(hub_errors.LocalEntryNotFoundError), "cannot be reached"),
        "connection": (ConnectionError("refused\nby peer"), "refused by peer"),
        "disk": (OSError(28, "No space left on device"), "No space left"),
    }


@pytest.mark.parametrize("kind", ["gated", "unknown", "offline", "connection", "disk"])
def test_hub_errors(monkeypatch, kind, refused):
    """Errors of the hub's library are ten lines long and do not say what to do."""
    import huggingface_hub

    error, part = errors()[kind]

    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with refused(ModelNotFoundError, "'org/name'", part):
        find_checkpoint("org/name")


def test_hub_download(monkeypatch, plain):
    """Only safe files of the top folder are fetched: no pickles, no code, no copies in other formats."""
    import fnmatch

    import huggingface_hub

    asked = {}

    def fake(name, **options):
        asked.update(options, name=name)
        return str(plain)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    said = []
    assert find_checkpoint("org/name", notify=said.append).name == "org/name"
    assert config_of("org/name").num_layers == 2
    assert len(said) == 1
    find_checkpoint("org/name")

    def is_wanted(file):
        return any(fnmatch.fnmatch(file, p) for p in asked["allow_patterns"]) and not any(
            fnmatch.fnmatch(file, p) for p in asked["ignore_patterns"]
        )

    files = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "chat_template.jinja",
        "model.safetensors.index.json",
        "chat_templates/tool_use.jinja",
    ]
    assert all(map(is_wanted, files))
    files = ["pytorch_model.bin", "modeling_x.py", "onnx/config.json", "consolidated.safetensors", "a/b.jinja"]
    assert not any(map(is_wanted, files))


def test_hub_cache_works_offline(plain, tmp_path):
    """A model that was downloaded once loads without a network (by links into a folder of blobs)."""
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for file in plain.iterdir():
        (snapshot / file.name).symlink_to(file)
    code = (
        "from selfspec.model import find_checkpoint, config_of\n"
        "print(find_checkpoint('org/name').name, config_of('org/name').num_layers)\n"
        "try:\n    find_checkpoint('org/other')\nexcept Exception as error:\n    print(type(error).__name__, error)"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "org/name 2"
    assert second.startswith("ModelNotFoundError 'org/other'")


def test_hub_library_is_optional(monkeypatch, refused):
    """Folders and GGUF files work without it; a hub id says what to install."""
    from selfspec.errors import RuntimeMissingError

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with refused(RuntimeMissingError, "pip install huggingface_hub"):
        hub.download("org/name", print)


def test_no_torch(plain):
    """The base package has no torch: a stray import costs seconds, or fails."""
    code = (
        "import sys; from selfspec.model import find_checkpoint; find_checkpoint(sys.argv[1]); "
        "print([name for name in ('torch', 'transformers', 'huggingface_hub', 'gguf') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(plain)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_name_that_no_file_has_is_one_line():
    """Guards `load`: the system's own error came through, and is no SelfspecError."""
    with pytest.raises(ModelNotFoundError, match="has a part of more than 255 bytes") as refused:
        find_checkpoint("a" * 5000)
    assert len(str(refused.value)) < 400
