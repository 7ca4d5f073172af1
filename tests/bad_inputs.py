"""Bad inputs of every kind, and what each one gets: docs/hardening.md is made from them, and a test compares."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
from click.testing import CliRunner
from random_heads import random_facts, random_head
from tiny_folder import write_model

BIG = 2**60


def command(*arguments):
    """What the command line answers: its one line, after checks that it is one, and exit code 2."""
    from selfspec.cli.main import cli

    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exit_code == 2, (arguments, done.output, done.exception)
    assert done.stdout == "", arguments
    *_, line = done.stderr.splitlines()
    assert line.startswith("selfspec: error: "), line
    return line.removeprefix("selfspec: error: ")


# -- the command line -------------------------------------------------------------------------------------

OPTIONS = [
    [""],
    ["a" * 5000],
    ["hi", "--max-new-tokens", "0"],
    ["hi", "--max-new-tokens", "1" + "0" * 30],
    ["hi", "--temperature", "-1"],
    ["hi", "--temperature", "nan"],
    ["hi", "--top-p", "0"],
    ["hi", "--min-tokens", "9", "--max-new-tokens", "5"],
    ["hi", "--repetition-penalty", "0"],
    ["hi", "--seed", "-1"],
    ["hi", "--stop", ""],
    ["hi", "--logit-bias", "x"],
    ["hi", "--logit-bias", "5=1e308"],
    ["hi", "--logit-bias", "9999=1"],
    ["hi", "--bad-word", " "],
    ["hi", "--json-schema", "{"],
    ["hi", "--json-schema", '{"$ref": "#"}'],
    ["hi", "--json-schema", '{"not": {}}'],
    ["hi", "--regex", "("],
    ["hi", "--regex", "(a{1000}){1000}"],
    ["hi", "--grammar", "start: start"],
    ["hi", "--chat-option", "depth=3"],
    ["hi", "--num-beams", "4"],
    ["hi", "--draft", "nobody"],
    ["hi", "--draft", "early_exit", "--exit-layer", "99"],
    ["hi", "--draft", "ngram", "--gamma", "999"],
    ["hi", "--draft", "plain", "--exit-layer", "2"],
    ["hi", "--runtime", "gpu"],
    ["hi", "--bits", "3"],
    ["hi", "--threads", "0"],
    ["hi", "--bits", "4", "--dtype", "float32"],
]


def shown(arguments):
    """As one would type it, long texts cut."""
    words = [argument if len(argument) < 40 else f"{argument[:8]}... ({len(argument)})" for argument in arguments]
    return " ".join(f'"{word}"' if not word or set(word) & set(' {("$') else word for word in words)


# -- files ------------------------------------------------------------------------------------------------


def edit(file, change):
    """Change a JSON document."""
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def header(file, change):
    """Change the JSON head of a safetensors file."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    document = json.loads(data[8 : 8 + length])
    change(document)
    head = json.dumps(document).encode()
    file.write_bytes(struct.pack("<Q", len(head)) + head + data[8 + length :])


def index(folder, name):
    """Weights in a file that an index names."""
    weights = folder / "model.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    shutil.move(weights, folder.parent / "outside.safetensors")


def damaged(folder):
    """Weights that are no numbers."""
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][:] = np.nan
    save_file(weights, folder / "model.safetensors")


def template(text):
    """Give a model a chat template."""
    return lambda folder: edit(folder / "tokenizer_config.json", lambda values: values.update(chat_template=text))


def config(**values):
    """Change its config.json."""
    return lambda folder: edit(folder / "config.json", lambda found: found.update(values))


def cut(name, size=-1):
    """Cut a file."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def weights(change):
    """Change the head of its weights."""
    return lambda folder: header(folder / "model.safetensors", change)


def first(head):
    """A tensor's entry."""
    return head["model.embed_tokens.weight"]


def pickled(folder):
    """Weights as old checkpoints have them."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps([]))


FOLDERS = {
    "no config.json": lambda folder: (folder / "config.json").unlink(),
    "config.json that is no JSON": lambda folder: (folder / "config.json").write_text("{"),
    "config.json nested 100,000 deep": lambda folder: (folder / "config.json").write_text("[" * 100_000),
    "config.json of 2^60 layers": config(num_hidden_layers=BIG),
    "config.json of 2^39 layers": config(num_hidden_layers=2**39),
    "config.json of another architecture": config(architectures=["Mystery"], model_type="mystery"),
    "weights in pickle files": pickled,
    "an index that names ../outside.safetensors": lambda folder: index(folder, "../outside.safetensors"),
    "an index that names an absolute path": lambda folder: index(folder, "/etc/passwd"),
    "weights cut by a byte": cut("model.safetensors"),
    "weights whose head is 2^60 bytes long": lambda folder: (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", BIG)
    ),
    "a tensor of 2^60 numbers": weights(lambda head: first(head).update(shape=[2**30, 2**30])),
    "tensors that overlap": weights(
        lambda head: first(head).update(data_offsets=[o + 64 for o in first(head)["data_offsets"]])
    ),
    "a tensor too many": weights(lambda head: head.update(extra=head.pop("model.norm.weight"))),
    "weights that are not numbers": damaged,
    "tokenizer.json cut": cut("tokenizer.json"),
    "tokenizer_config.json with half a character": lambda folder: (folder / "tokenizer_config.json").write_text(
        '{"eos_token": "\\ud800"}'
    ),
    "a tokenizer of more tokens than the model": config(vocab_size=100),
    "a chat template that reaches for Python": template("{{ messages.__class__.__mro__ }}"),
    "a chat template of 10^10 letters": template("{{ 'a' * 10 ** 10 }}"),
    "a chat template that loops 10^9 times": template("{% for i in range(10 ** 9) %}{% endfor %}"),
    "a chat template that is broken": template("{% if %}"),
}


def folder_case(change, place):
    """What a changed model gets."""
    write_model(place / "model")
    change(place / "model")
    return command("generate", "hi", "--model", place / "model")


def gguf_bytes(tensors=0, values=(), version=3):
    """A GGUF head that says what it says."""
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, len(values))
    return head + b"".join(struct.pack("<Q", len(key)) + key.encode() + value for key, value in values)


STRING = struct.pack("<I", 8)
FILES = {
    "GGUF: another file by that name": b"PK\x03\x04 and so on",
    "GGUF: version 99": gguf_bytes(version=99),
    "GGUF: 2^60 tensors": gguf_bytes(tensors=BIG),
    "GGUF: a text of 2^60 letters": gguf_bytes(values=[("general.name", STRING + struct.pack("<Q", BIG))]),
    "GGUF: an array of 2^60 texts": gguf_bytes(
        values=[("tokenizer.ggml.tokens", struct.pack("<IIQ", 9, 8, BIG) + b"\0" * 64)]
    ),
    "GGUF: cut in its head": gguf_bytes(values=[("general.name", STRING)])[:-2],
    "GGUF: empty metadata": gguf_bytes(),
}


def gguf_case(data, place):
    """What a GGUF file of these bytes gets."""
    (place / "x.gguf").write_bytes(data)
    return command("generate", "hi", "--model", place / "x.gguf")


def head_case(change, place, draft="eagle", **facts):
    """What a changed head gets."""
    from selfspec.model.head_file import write_head

    path = place / "head.safetensors"
    write_head(path, random_head(random_facts(**facts)))
    change(path)
    return command("generate", "hi", "--model", Model.folder, "--draft", draft, "--head", path)


def facts(**values):
    """Change what a head says of itself."""

    def change(path):
        def write(document):
            about = document["__metadata__"]
            about["selfspec.head"] = json.dumps(json.loads(about["selfspec.head"]) | values)

        header(path, write)

    return change


HEADS = {
    "a head that is cut": lambda path: cut(path.name, 500)(path.parent),
    "a head of format 2": facts(format=2),
    "a head with a fact of a later version": facts(mood="good"),
    "a head of another size": facts(hidden_size=64),
    "a head of another checkpoint": facts(target="0" * 64, target_name="other"),
    "a head that is a checkpoint": lambda path: shutil.copyfile(Model.folder / "model.safetensors", path),
}


def text_file(name, data, *arguments):
    """What a file gets as an argument."""

    def case(place):
        path = place / name
        path.write_bytes(data) if data is not None else path.mkdir()
        return command(*(path if argument == "FILE" else argument for argument in arguments))

    return case


class Model:
    """A tiny model that all cases share."""

    folder = Path()


def others():
    """Files beside models."""
    own = ("--model", Model.folder)
    ask = ("generate", "hi", *own)
    old = json.dumps({"format": 2}).encode()
    array = pickle.dumps(np.zeros(1, object))
    out = ("batch", "FILE", "out.jsonl", *own)
    return {
        "--model FILE (a text)": text_file("x.txt", b"hello", "generate", "hi", "--model", "FILE"),
        "--profile FILE (format 2)": text_file("p.json", old, *ask, "--profile", "FILE"),
        "--profile FILE (`[]`)": text_file("p.json", b"[]", *ask, "--profile", "FILE"),
        "--corpus FILE (a pickled array)": text_file("x.npy", array, *ask, "--draft", "suffix", "--corpus", "FILE"),
        "--corpus FILE (token 9999)": text_file(
            "x.jsonl", b'{"token_ids": [9999]}', *ask, "--draft", "suffix", "--corpus", "FILE"
        ),
        "--tools FILE (no JSON)": text_file("t.json", b"tools", *ask, "--tools", "FILE"),
        "batch FILE (empty)": text_file("p.jsonl", b"", *out),
        "report FILE (`[]`)": text_file("r.json", b"[]", "report", "FILE"),
        "report FILE (format 2)": text_file("r.json", old, "report", "FILE"),
        "bench --data FILE (no questions)": text_file("d.jsonl", b"{}", "bench", *own, "--data", "FILE"),
        "profile --out FILE (a folder)": text_file("out", None, "profile", *own, "--out", "FILE"),
        "train data --text FILE (nothing to use)": text_file(
            "t.jsonl", b'{"text": ""}', "train", "data", *own, "--text", "FILE", "--out", "answers"
        ),
        "train eagle --data FILE (a folder without data)": text_file(
            "data", None, "train", "eagle", *own, "--data", "FILE", "--out", "run"
        ),
        "bundle --out FILE (there already)": text_file("box", b"", "bundle", Model.folder, "--out", "FILE"),
    }


# -- the server -------------------------------------------------------------------------------------------

_HI = {"messages": [{"role": "user", "content": "hi"}]}
BODIES = [
    b"{",
    b"null",
    b'{"prompt": "a", "prompt": "b"}',
    {},
    {"messages": []},
    {"messages": [None]},
    {"messages": [{"role": "king", "content": "a"}]},
    {"messages": [{"role": "user", "content": 5}]},
    _HI | {"magic": 1},
    _HI | {"best_of": 3},
    _HI | {"temperature": "hot"},
    _HI | {"max_tokens": 10**30},
    _HI | {"n": 5000},
    _HI | {"seed": 2**70},
    _HI | {"stop": ["x"] * 99},
    _HI | {"logit_bias": {"5": 1e308}},
    _HI | {"response_format": {"type": "xml"}},
    _HI | {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": True}}},
    _HI | {"structured_outputs": {"regex": "("}},
    _HI | {"tools": [{"type": "function", "function": {"name": "no spaces please"}}]},
    _HI | {"tool_choice": "required"},
    _HI | {"speculative": {"draft": "draft_model"}},
    _HI | {"speculative": {"corpus": ["/etc/passwd"]}},
]


def body_case(body, engine):
    """What a body gets; the status is 400."""
    from selfspec.errors import SelfspecError
    from selfspec.server.asks import Desk
    from selfspec.server.failures import body_of, status_of
    from selfspec.server.fields import ChatFields, read
    from selfspec.server.settings import ServerOptions

    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        Desk(engine, ServerOptions("tiny")).generations(read(ChatFields, raw))
    except SelfspecError as error:
        status, found = status_of(error), body_of(error)["error"]
    else:
        raise AssertionError(f"{body} was taken")
    assert status == 400, found
    return f"{found['message']} (param {found['param']})" if found["param"] else str(found["message"])


def body_shown(body):
    """The field that is wrong."""
    if isinstance(body, bytes):
        return body.decode()
    own = {name: value for name, value in body.items() if name not in _HI or value != _HI[name]}
    text = json.dumps(own)
    return text if len(text) < 90 else f"{text[:60]}..."


# -- all of them ------------------------------------------------------------------------------------------


def answers(home):
    """(what, [(input, what it gets)]) of all kinds; ``home`` is an empty folder, and FOLDER in what is said."""
    import selfspec

    home = home.resolve()
    os.environ["SELFSPEC_CACHE"] = str(home / "cache")
    Model.folder = home / "tiny"
    write_model(Model.folder)
    engine = selfspec.load(Model.folder, threads=1)

    def told(case, *more):
        place = home / "place"
        shutil.rmtree(place, ignore_errors=True)
        (home / "outside.safetensors").unlink(missing_ok=True)
        place.mkdir()
        before = Path.cwd()
        os.chdir(place)
        try:
            line = case(*more, place)
        finally:
            os.chdir(before)
        return line.replace(f"{place}/", "").replace(str(place), "FOLDER").replace(str(home), "FOLDER")

    def options(arguments, _place):
        return command("generate", *arguments, "--model", Model.folder)

    yield "`selfspec generate` with", [(shown(a), told(options, a)) for a in OPTIONS]
    yield "A folder with", [(what, told(folder_case, change)) for what, change in FOLDERS.items()]
    yield "A file", [(what, told(gguf_case, data)) for what, data in FILES.items()]
    yield "A head", [(what, told(head_case, change)) for what, change in HEADS.items()]
    yield "Other files", [(what, told(case)) for what, case in others().items()]
    yield "A chat request with", [(body_shown(body), body_case(body, engine)) for body in BODIES]
