import pytest
from tiny_models import save_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import processors

from selfspec.errors import (
    CorruptModelError,
    ModelNotFoundError,
    OptionError,
    PromptError,
    UnsupportedModelError,
)
from selfspec.model import Tokenizer
from selfspec.model.chat import TemplateInputs

CHAT = [{"role": "system", "content": "Be <b>brief</b>."}, {"role": "user", "content": "Hi & é😀\n"}]
RICH = """{%- set ns = namespace(seen=0) %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}{% continue %}{% endif %}
    {%- set ns.seen = ns.seen + 1 %}
    {% generation %}{{ bos_token }}{{ m | tojson }}{{ {"a": "<é>"} | tojson(indent=2) }}{% endgeneration %}
    {% if tools is not none or documents is not none %}TOOLS{% endif %}
    {%- if ns.seen > 5 %}{% break %}{% endif %}
{%- endfor %}
{{ ns.seen }} {{ strftime_now("%Y-%m") }} {{ eos_token }}{% if add_generation_prompt %}GO{% endif %}
"""


def tokenizer_of(folder, **settings):
    return Tokenizer.from_folder(save_tokenizer(folder, **settings))


def reference(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def change(folder, edit):
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    edit(backend)
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_folder(folder)


def test_round_trip_and_special_tokens(tmp_path):
    """Special tokens that are spelled out are tokens, and decode leaves them out."""
    tokenizer = tokenizer_of(tmp_path)
    ids = tokenizer.encode("<|im_start|>the é<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids) == "the é"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>the é<|im_end|>"
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.vocab_size == 3 + 256 + 7


@pytest.mark.parametrize("template", [RICH, None])
def test_chat_equals_transformers(tmp_path, template):
    """Another white space or escape than in training makes a model noticeably worse."""
    save_tokenizer(tmp_path, bos_token="<|im_start|>", **({"chat_template": template} if template else {}))
    ours, theirs = Tokenizer.from_folder(tmp_path), reference(tmp_path)
    for messages in (CHAT, CHAT[1:], [*CHAT, {"role": "tool", "content": "x"}]):
        for prompt in (True, False):
            rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert ours.render(messages, prompt) == rendered
            assert ours.encode_chat(messages, prompt) == theirs.encode(rendered, add_special_tokens=False)


def test_one_bos(tmp_path):
    """Chat prompts began with two BOS tokens: one of the template, one of the tokenizer."""

    def add_bos(backend):
        backend.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )

    save_tokenizer(tmp_path, chat_template="<|endoftext|>{{ messages[0].content }}")
    tokenizer = change(tmp_path, add_bos)
    assert tokenizer.encode("a")[0] == 0
    assert tokenizer.encode_chat([{"role": "user", "content": "a"}]) == tokenizer.encode("a")


def test_template_sources(tmp_path):
    """The .jinja file goes first; of several named templates, the default one."""
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert tokenizer_of(tmp_path, chat_template=named).render(CHAT) == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    (tmp_path / "chat_templates").mkdir()
    (tmp_path / "chat_templates" / "tool_use.jinja").write_text("U{{ tools }}")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.render(CHAT) == reference(tmp_path).apply_chat_template(CHAT, tokenize=False) == "J"
    assert tokenizer.render(CHAT, True, TemplateInputs(tools=[])) == "U[]"
    assert tokenizer_of(tmp_path / "none", chat_template=None).has_chat_template is False


def test_eos_sources(tmp_path):
    """Llama 3 ends turns with an id that only generation_config.json has: it talked on for ever."""
    save_tokenizer(tmp_path, eos_token={"content": "<|endoftext|>"})
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == (0,)
    (tmp_path / "config.json").write_text('{"eos_token_id": 1}')
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == (1,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == (2, 0)


def test_added_tokens_of_the_config(tmp_path):
    """A special token that only the files beside tokenizer.json name was split into letters."""
    settings = {"added_tokens_decoder": {"266": {"content": "<new>", "special": True}}}
    tokenizer = tokenizer_of(tmp_path, **settings)
    assert tokenizer.encode("a<new>") == [tokenizer.encode("a")[0], 266]
    save_tokenizer(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "Ġthe"}')
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert len(tokenizer.encode("aĠthe")) == 2


def test_padding_and_truncation_are_off(tmp_path):
    """Some tokenizer.json files carry the padding and truncation of a training run: prompts were cut."""

    def training(backend):
        backend.enable_truncation(3)
        backend.enable_padding(length=8)

    save_tokenizer(tmp_path)
    assert len(change(tmp_path, training).encode("abcdef")) == 6


def test_token_without_embedding(tmp_path, refused):
    """A padding token beyond the embeddings crashed the forward pass."""
    save_tokenizer(tmp_path, added_tokens_decoder={"266": {"content": "<pad>", "special": True}})
    tokenizer = Tokenizer.from_folder(tmp_path, limit=266)
    with refused(PromptError, "<pad>", "266"):
        tokenizer.encode("a<pad>")


@pytest.mark.parametrize(
    ("messages", "part"),
    [
        ([], "non-empty list"),
        ("hi", "non-empty list"),
        ({"role": "user", "content": "x"}, "non-empty list"),
        (["hi"], "message 0"),
        ([CHAT[0], {"role": "user"}], "message 1 has content None"),
        ([{"content": "x"}], "has role None"),
        ([{"role": "user", "content": ["x"]}], "content"),
    ],
)
def test_wrong_messages(tmp_path, messages, part, refused):
    """A message without content ended in a jinja stack trace."""
    with refused(PromptError, part):
        tokenizer_of(tmp_path).render(messages)


@pytest.mark.parametrize(
    ("template", "part"),
    [
        ("{{ raise_exception('roles must\\nalternate') }}", "roles must alternate"),
        ("{% if %}", "chat template"),
        ("{{ messages[0].content + 1 }}", "chat template"),
        ("{{ messages.append(1) }}", "chat template"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "chat template"),
        ("{{ nothing.at.all }}", "undefined"),
    ],
)
def test_template_errors(tmp_path, template, part, refused):
    """A template is a program from the internet: it fails in one line, and it stays in its sandbox."""
    with refused(PromptError, part):
        tokenizer_of(tmp_path, chat_template=template).render(CHAT)


def test_no_template(tmp_path, refused):
    """A base model has none; that is said."""
    with refused(PromptError, "no chat template"):
        tokenizer_of(tmp_path, chat_template=None).encode_chat(CHAT)


def test_lone_surrogate(tmp_path, refused):
    """What a terminal cannot decode arrives as a lone surrogate and ended in a stack trace."""
    with refused(PromptError, "surrogate"):
        tokenizer_of(tmp_path).encode("a\udc80")


@pytest.mark.parametrize(
    ("file", "text", "parts"),
    [
        ("tokenizer.json", "{", ("tokenizer.json",)),
        ("tokenizer.json", '{"model": {"type": "X"}}', ("tokenizer.json",)),
        ("tokenizer_config.json", "{nope", ("tokenizer_config.json", "JSON")),
        ("tokenizer_config.json", "[1]", ("list",)),
        ("tokenizer_config.json", '{"eos_token": 3}', ("eos_token",)),
        ("tokenizer_config.json", '{"chat_template": 3}', ("chat_template",)),
        ("tokenizer_config.json", '{"chat_template": [3]}', ("chat_template",)),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 1}}', ("added_tokens_decoder",)),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"9": {"content": "<n>"}}}', ("<n>", "9")),
        ("special_tokens_map.json", '{"pad_token": [1]}', ("pad_token",)),
        ("generation_config.json", '{"eos_token_id": "x"}', ("eos_token_id", "generation_config.json")),
        ("chat_template.jinja", b"\xff\xff", ("chat_template.jinja",)),
    ],
)
def test_damaged_files(tmp_path, file, text, parts, refused):
    """Damaged JSON ended in a stack trace that did not name the file."""
    save_tokenizer(tmp_path)
    (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with refused(CorruptModelError, *parts):
        Tokenizer.from_folder(tmp_path)


def test_several_templates_without_a_default(tmp_path, refused):
    """Taking just any of them would be a guess; plain prompts need none."""
    tokenizer = tokenizer_of(tmp_path, chat_template=[{"name": name, "template": name} for name in "ab"])
    assert tokenizer.encode("a")
    with refused(OptionError, "a, b", "chat_template"):
        tokenizer.render(CHAT)
    assert tokenizer.render(CHAT, True, TemplateInputs(chat_template="b")) == "b"


def test_no_tokenizer(tmp_path, refused):
    """A folder with the SentencePiece model only needs another advice than one without a tokenizer."""
    with refused(ModelNotFoundError, "no tokenizer.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with refused(ModelNotFoundError, "tokenizer.model", "transformers"):
        Tokenizer.from_folder(tmp_path)


def test_of_a_transformers_tokenizer(tmp_path, refused):
    """Engines made from a model object read the tokenizer object, and must leave it as it is."""
    theirs = reference(save_tokenizer(tmp_path))
    theirs.backend_tokenizer.enable_truncation(3)
    ours = Tokenizer.of(theirs)
    assert ours.encode_chat(CHAT) == Tokenizer.from_folder(tmp_path).encode_chat(CHAT)
    assert ours.eos_token_ids == (2,)
    assert theirs.backend_tokenizer.truncation["max_length"] == 3
    with refused(UnsupportedModelError, "fast"):
        Tokenizer.of(object())
