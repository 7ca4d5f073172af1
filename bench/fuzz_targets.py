"""What is fuzzed: for each kind of file how a valid one is made, and how selfspec reads it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "model")]

import numpy as np  # noqa: E402
from fuzz_changes import change_file  # noqa: E402
from random_heads import random_facts, random_head  # noqa: E402
from tiny_folder import write_model  # noqa: E402

import selfspec  # noqa: E402
from selfspec import tuned  # noqa: E402
from selfspec.model.cache import MANIFEST, read_manifest, write_manifest  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

ASK = {"messages": [{"role": "user", "content": "a b"}], "max_new_tokens": 3, "temperature": 0}


@dataclass(frozen=True)
class Target:
    """``make`` fills a folder with valid files, ``change`` alters them, ``read`` reads them as a user would."""

    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    change: Callable[[Path, Random], None]


class Shared:
    """A tiny model that is loaded once, before the processes that read cases begin."""

    engine: Any = None
    folder = Path()


def prepare(home: Path) -> None:
    """Make what cases share; their conversions go into ``home``."""
    os.environ["SELFSPEC_CACHE"], os.environ["MPLCONFIGDIR"] = str(home / "cache"), str(home / "matplotlib")
    import matplotlib.font_manager  # noqa: F401 (asks fc-list once, which a case may not)

    Shared.folder = home / "tiny"
    write_model(Shared.folder)
    Shared.engine = selfspec.load(Shared.folder, threads=1, draft="plain")


def one_of(*patterns: str) -> Callable[[Path, Random], None]:
    """Change one or two of the files that match."""

    def change(folder: Path, random: Random) -> None:
        files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
        for file in random.sample(files, min(len(files), random.choice((1, 1, 1, 2)))):
            change_file(file, random)

    return change


# -- models -----------------------------------------------------------------------------------------------


def _folder(folder: Path) -> None:
    write_model(folder / "model")
    (folder / "model/generation_config.json").write_text('{"eos_token_id": [257, 258]}')
    (folder / "model/special_tokens_map.json").write_text('{"eos_token": {"content": "<|im_end|>"}}')
    (folder / "model/chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )


def _sharded(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    _folder(folder)
    whole = folder / "model/model.safetensors"
    weights = load_file(whole)
    whole.unlink()
    names = sorted(weights)
    index = {}
    for part in range(2):
        file = f"model-0000{part + 1}-of-00002.safetensors"
        save_file({name: weights[name] for name in names[part::2]}, folder / "model" / file)
        index |= dict.fromkeys(names[part::2], file)
    (folder / "model/model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def _read_model(folder: Path) -> None:
    selfspec.load(folder / "model", threads=1, draft="ngram", tuned=False).generate(**ASK)


def _gguf(folder: Path) -> None:
    import gguf
    from gguf.quants import quantize
    from tiny_models import gguf_tensors, interleave, write_metadata

    writer = gguf.GGUFWriter(folder / "tiny.gguf", "llama")
    write_metadata(writer, "smollm", {})
    for name, array in gguf_tensors(np.random.default_rng(0)).items():
        heads = {"attn_q.": 4, "attn_k.": 2}.get(name.split(".", 2)[-1].removesuffix("weight"))
        kind = gguf.GGMLQuantizationType["Q8_0" if array.ndim == 2 else "F32"]
        writer.add_tensor(name, quantize(interleave(array, heads) if heads else array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _read_gguf(folder: Path) -> None:
    selfspec.load(folder / "tiny.gguf", threads=1, draft="plain", tuned=False).generate(**ASK)


def _packed(folder: Path) -> None:
    from selfspec.model.packed_folder import write_packed
    from selfspec.runtime.packed import find_packed

    made = find_packed(Shared.folder, 8)
    (folder / "model").mkdir()
    write_packed(made.folder, made.texts, folder / "model", made.name)


def _change_packed(folder: Path, random: Random) -> None:
    """Mostly with checksums that agree again, as whoever means harm would make them."""
    one_of("model/*")(folder, random)
    inner = folder / "model"
    if random.random() < 0.8 and (about := read_manifest(inner)) and (inner / MANIFEST).exists():
        write_manifest(inner, {name: value for name, value in about.items() if name != "files"})


# -- what stands beside models ----------------------------------------------------------------------------


def _head(folder: Path) -> None:
    from selfspec.model.head_file import write_head

    write_head(folder / "eagle.safetensors", random_head(random_facts(), vocabulary=[3, 40, 200]), int8=True)
    write_head(folder / "exit.safetensors", random_head(random_facts("exit_head", "layer")))


def _read_head(folder: Path) -> None:
    from selfspec.errors import SelfspecError

    said: list[SelfspecError] = []
    for file, draft in (("eagle", "eagle"), ("exit", "early_exit")):
        try:
            Shared.engine.generate(**ASK, draft=draft, head=str(folder / f"{file}.safetensors"))
        except SelfspecError as error:
            said.append(error)
    if said:
        raise said[0]


def _results(folder: Path) -> None:
    """What the verbs write (some seconds), and what `tune` would keep of them."""
    from click.testing import CliRunner

    from selfspec.cli.main import cli

    (folder / "data.jsonl").write_text('{"task": "a", "prompt": "Hi"}')
    shared = ("--model", Shared.folder, "--data", folder / "data.jsonl", "--threads", 1)
    quick = ("--max-new-tokens", 6, "--gamma", 2, "--budget", "1s", "--contexts", 8, "--check", 0, "--pairs", 1)
    commands = {
        "profile": ("profile", *shared, *quick),
        "bench": ("bench", *shared, "--max-new-tokens", 8, "--repeats", 1, "--drafts", "ngram"),
    }
    for name, command in commands.items():
        done = CliRunner().invoke(cli, [str(part) for part in (*command, "--out", folder / f"{name}.json")])
        assert done.exit_code == 0, done.output
    (folder / "data.jsonl").unlink()
    profile = json.loads((folder / "profile.json").read_text())
    profile["identity"] |= {**tuned.facts_of(Shared.engine), "machine": dict(tuned.machine())}
    (folder / "profile.json").write_text(json.dumps(profile))
    kept = {"kind": "tune", "choice": {"draft": "suffix:gamma=3", "uses_profile": True}}
    (folder / "tune.json").write_text(json.dumps(profile | kept))


def _read_results(folder: Path) -> None:
    from selfspec.cli.notebook import Notebook
    from selfspec.drafters.prior import read_prior
    from selfspec.errors import SelfspecError
    from selfspec.measure.worth import Saved
    from selfspec.reporting.page import report

    own = tuned.file_for(Shared.engine)
    own.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / "tune.json", own)
    tuned.find_tuned(Shared.engine)
    said: list[SelfspecError] = []
    for read in (
        lambda: read_prior(str(folder / "profile.json"), Shared.engine),
        lambda: Saved.read(str(folder / "profile.json")),
        lambda: Notebook(folder / "profile.json"),
        *(lambda kind=kind: report([str(folder / f"{kind}.json")]) for kind in ("profile", "bench")),
    ):
        try:
            read()
        except SelfspecError as error:
            said.append(error)
    if said:
        raise said[0]


def _data(folder: Path) -> None:
    from selfspec.train.folder import growing
    from selfspec.train.shards import Text

    with growing(folder / "d", _provenance()) as kept:
        kept.add(Text(np.asarray([1, 2, 3, 4], np.int32), 2, 0.0, 0))
        kept.add(Text(np.asarray([5, 6, 7], np.int32), 1, 1.0, 1))
    (folder / "out.partial").write_text('{"batch": {"a": 1}}\n{"line": 1, "text": "x"}\n{"line": 2, "error": {}}\n')


def _provenance() -> dict[str, Any]:
    return {
        "format": 1, "kind": "answers", "model": {"name": "m", "fingerprint": "f"}, "vocab_size": 12,
        "eos_token_ids": [9], "special_ids": [9, 11], "temperatures": [0.0, 1.0], "seed": 3, "version": "1",
    }  # fmt: skip


def _read_data(folder: Path) -> None:
    from selfspec import journal
    from selfspec.errors import SelfspecError
    from selfspec.train.data import read_data
    from selfspec.train.folder import growing

    said: list[SelfspecError] = []
    try:
        with journal.opened(folder / "out", {"a": 1}) as kept:
            kept.finish(kept)
    except SelfspecError as error:
        said.append(error)
    try:
        with growing(folder / "d", _provenance()):
            pass
    except SelfspecError as error:
        said.append(error)
    list(read_data(folder / "d"))
    if said:
        raise said[0]


def _corpus(folder: Path) -> None:
    np.save(folder / "ids.npy", np.asarray([1, 2, 3, 4, 1, 2, 3], np.int32))
    lines = [{"text": "a b c"}, {"token_ids": [1, 2]}, {"messages": [{"role": "user", "content": "x"}]}]
    (folder / "lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "text.txt").write_text("a b c d a b c")


def _read_corpus(folder: Path) -> None:
    from selfspec.errors import SelfspecError

    said: list[SelfspecError] = []
    for file in sorted(folder.iterdir()):
        try:
            Shared.engine.generate(**ASK, draft="suffix", corpus=(str(file),))
        except SelfspecError as error:
            said.append(error)
    if said:
        raise said[0]


# -- requests ---------------------------------------------------------------------------------------------

_CHAT = {
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 4, "stop": ["x"], "n": 1, "logprobs": True,
    "top_logprobs": 2, "logit_bias": {"5": -1}, "presence_penalty": 0.1, "stream": True,
    "stream_options": {"include_usage": True}, "speculative": {"draft": "ngram", "gamma": 2},
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {
        "type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}}},
    "prediction": {"type": "content", "content": "abc"},
}  # fmt: skip
_COMPLETION = {"prompt": ["a", "b"], "max_tokens": 2, "echo": True, "logprobs": 1, "min_tokens": 1, "top_k": 3,
               "structured_outputs": {"regex": "[ab]+"}, "deadline": 3}  # fmt: skip


def _requests(folder: Path) -> None:
    (folder / "chat.json").write_text(json.dumps(_CHAT))
    (folder / "completion.json").write_text(json.dumps(_COMPLETION))
    (folder / "batch.json").write_text(json.dumps({"custom_id": "a", "url": "/v1/chat/completions", "body": _CHAT}))


def _read_requests(folder: Path) -> None:
    from selfspec.cli.asking import asked
    from selfspec.errors import SelfspecError
    from selfspec.server.asks import Desk
    from selfspec.server.fields import ChatFields, CompletionFields, read
    from selfspec.server.settings import ServerOptions

    desk = Desk(Shared.engine, ServerOptions("tiny"))
    said: list[SelfspecError] = []
    for kind, file in ((ChatFields, "chat"), (CompletionFields, "completion")):
        try:
            for generation in desk.generations(read(kind, (folder / f"{file}.json").read_bytes())):
                assert generation.prompt
        except SelfspecError as error:
            said.append(error)
    list(asked((folder / "batch.json").read_bytes(), ["tiny"]))
    if said:
        raise said[0]


TARGETS = {
    "folder": Target(_folder, _read_model, one_of("model/*")),
    "sharded": Target(_sharded, _read_model, one_of("model/*.safetensors*")),
    "gguf": Target(_gguf, _read_gguf, one_of("*.gguf")),
    "packed": Target(_packed, _read_model, _change_packed),
    "head": Target(_head, _read_head, one_of("*")),
    "results": Target(_results, _read_results, one_of("*")),
    "data": Target(_data, _read_data, one_of("d/*", "out.partial")),
    "corpus": Target(_corpus, _read_corpus, one_of("*")),
    "requests": Target(_requests, _read_requests, one_of("*")),
}
