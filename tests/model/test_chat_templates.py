"""Chat templates against transformers' own ``apply_chat_template``: the same text, or a refusal where it fails.

The templates are small ones of our own, in the manners of those that models come with.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
import transformers
from tiny_models import save_tokenizer

from selfspec.errors import OptionError, PromptError
from selfspec.model import Tokenizer
from selfspec.model.chat import TemplateInputs
from selfspec.model.tools import schemas_of

FOLDER = Path(__file__).parent / "templates"


def read_templates(folder):
    """Template by name; several of one model by theirs."""
    found = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}
    return found | {path.name: read_templates(path) for path in folder.iterdir() if path.is_dir()}


TEMPLATES = read_templates(FOLDER)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the <weather> & \"more\" — now: ☀.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "where"},
                "days": {"type": ["integer", "null"], "description": "how many"},
                "units": {"type": "string", "enum": ["C", "F"], "description": "which", "nullable": True},
                "parts": {"type": "array", "items": {"type": "string"}, "description": "of it"},
            },
            "required": ["place"],
        },
    },
}  # fmt: skip
USER = {"role": "user", "content": ' Is it <hot> & "dry" in 東京? é😀\n'}
SYSTEM = {"role": "system", "content": "Be brief. /no_think"}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes. "}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "123456789",
            "type": "function",
            "function": {"name": "weather", "arguments": {"place": "東京", "n": 1}},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "123456789", "name": "weather", "content": "31 °C <dry>"}
CHATS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, {"role": "user", "content": "Sure?"}],
    "answered": [SYSTEM, USER, ANSWER],
    "wrong turns": [USER, USER],
    "thought": [USER, {**ANSWER, "content": "Yes.", "reasoning": "hm, hm"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}],
    "call": [USER, CALL],
    "called": [USER, {**CALL, "reasoning_content": "look"}, RESULT],
    "two results": [USER, CALL, RESULT, RESULT, ANSWER],
    "json result": [USER, CALL, {**RESULT, "content": {"celsius": 31}}],
    "no call": [USER, RESULT],
}
EXTRAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": [WEATHER, {"name": "bare", "description": "d", "parameters": {"properties": {}}}]},
    "one tool": {"tools": [WEATHER]},
    "no thinking": {"chat_options": {"enable_thinking": False}},
    "effort": {"chat_options": {"reasoning_effort": "high", "builtin_tools": ["browser"]}},
    "date": {"chat_options": {"date_string": "1 Jan 2030"}},
    "controls": {"chat_options": {"controls": {"length": "short"}}},
    "documents": {"documents": [{"title": "T", "text": "<é>"}], "chat_template": "rag"},
    "fast": {"documents": [{"title": "T"}], "chat_template": "rag", "chat_options": {"citation_mode": "fast"}},
}  # fmt: skip
REFUSED = "refused"


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Template name -> our tokenizer and transformers'."""
    from transformers import AutoTokenizer

    found = {}
    for name, source in TEMPLATES.items():
        named = source if isinstance(source, str) else [{"name": n, "template": t} for n, t in source.items()]
        folder = save_tokenizer(tmp_path_factory.mktemp("chat"), chat_template=named, bos_token="<|im_start|>")
        found[name] = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    return found


def theirs(tokenizer, messages, prompt, extra, goes_on=False):
    """What transformers makes of it; REFUSED where it fails, or writes a Python object into the prompt."""
    options = dict(extra.get("chat_options", {}))
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=prompt,
            continue_final_message=goes_on,
            tools=extra.get("tools"),
            documents=extra.get("documents"),
            chat_template=extra.get("chat_template"),
            **options,
        )
    except Exception:  # whatever it raises
        return REFUSED
    is_garbage = any(not isinstance(m["content"], str | None) and str(m["content"]) in text for m in messages)
    return REFUSED if is_garbage or not text.strip() else text


def ours(tokenizer, messages, prompt, extra, goes_on=False):
    try:
        return tokenizer.render(messages, prompt, TemplateInputs(**extra, continue_final_message=goes_on))
    except PromptError:
        return REFUSED


def is_read(name, extra):
    """Whether the template has something for what it is given: what it leaves out, we refuse."""
    sources = TEMPLATES[name] if isinstance(TEMPLATES[name], dict) else {"default": TEMPLATES[name]}
    if "chat_template" in extra and extra["chat_template"] not in sources:
        return False
    chosen = extra.get("chat_template", "tool_use" if "tools" in extra and "tool_use" in sources else "default")
    words = [key for key in ("tools", "documents") if key in extra] + list(extra.get("chat_options", ()))
    return all(word in sources[chosen] for word in words)


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_equal_transformers(both, name):
    """Another white space, escape or order than in training makes a model noticeably worse."""
    mine, other = both[name]
    texts = set()
    for extra in EXTRAS.values():
        for messages in CHATS.values():
            for prompt in (True, False):
                if is_read(name, extra):
                    text = ours(mine, messages, prompt, extra)
                    assert text == theirs(other, messages, prompt, extra)
                    texts.add(text)
    assert len(texts) > 10


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_last_message_goes_on_as_in_transformers(both, name):
    """An answer that was begun for the model ended in an end-of-turn token, and the model began anew."""
    mine, other = both[name]
    ends = [
        ANSWER,
        {**ANSWER, "content": "Yes, and "},
        {**ANSWER, "content": "No"},
        {"role": "user", "content": "So"},
    ]
    found = set()
    for end in ends:
        text = ours(mine, [USER, end], False, {}, goes_on=True)
        assert text == theirs(other, [USER, end], False, {}, goes_on=True)
        found.add(text)
    assert len(found) > 2


@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_equal_transformers(both, name):
    """A chat prompt began with two BOS tokens, or lost the one that the template writes."""
    mine, other = both[name]
    want = other.apply_chat_template([USER, ANSWER, USER], add_generation_prompt=True, return_dict=False)
    assert mine.encode_chat([USER, ANSWER, USER]) == want
    assert want.count(1) - mine.encode(mine.render([USER, ANSWER, USER])).count(1) == 0


def test_what_the_template_does_not_take_is_refused(both, refused):
    """Tools that a template leaves out vanish silently in transformers, and the model never calls any."""
    for name in ("gemma", "phi_3", "smollm2"):
        with refused(PromptError, "no tools", "leave tools out"):
            both[name][0].render([USER], True, TemplateInputs(tools=[WEATHER]))
    with refused(PromptError, "no documents"):
        both["qwen_3"][0].render([USER], True, TemplateInputs(documents=[{"title": "T"}]))
    with refused(OptionError, "'enable_think'", "enable_thinking"):
        both["qwen_3"][0].render([USER], True, TemplateInputs(chat_options={"enable_think": False}))
    with refused(OptionError, "'messages'"):
        both["qwen_3"][0].render([USER], True, TemplateInputs(chat_options={"messages": []}))
    with refused(PromptError, "parts", "one text"):
        both["granite"][0].render(CHATS["parts"])
    with refused(OptionError, "'tool'", "default, rag, tool_use"):
        both["command_r"][0].render([USER], True, TemplateInputs(chat_template="tool"))
    with refused(OptionError, "continue_final_message"):
        both["qwen_3"][0].render([USER], True, TemplateInputs(continue_final_message=True))
    with refused(PromptError, "leaves out the last message"):
        both["smollm3"][0].render([USER, SYSTEM], False, TemplateInputs(continue_final_message=True))


def test_a_template_of_ones_own(both):
    """A template may be given as text."""
    own = TemplateInputs(chat_template="{{ messages[0].role }}!")
    assert both["phi_3"][0].render([USER], True, own) == "user!"


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ({"role": "user", "content": [{"type": "image", "url": "x"}]}, "texts only"),
        ({"role": "user", "content": ["x"]}, "texts only"),
        ({"role": "user", "content": {"a": 1}}, "string or a list"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "string or a list"),
        ({"role": "user", "content": "a", "more": object()}, "more holds a object"),
    ],
)
def test_wrong_contents(both, message, part, refused):
    """An image was written into the prompt as a Python object."""
    with refused(PromptError, "message 1", part):
        both["granite"][0].render([USER, message])


# -- functions as tools -----------------------------------------------------------------------------------


class Unit(Enum):
    CELSIUS = "C"
    KELVIN = 1


def forecast(
    place: str, days: int = 3, unit: Unit | None = None, *, wet: bool | None = None
) -> list[dict[str, float]]:
    """
    Say what the weather will be.

    Over more than a week: guess.

    Args:
        place: The name of a place,
            and its country: both
        days (int): How many days
        unit: In which unit
        wet: Only rain (choices: ["yes", "no"])

    Returns:
        The temperatures.
    """


def mixed(
    a: list[str],
    b: dict[str, int],
    c: tuple[int, str],
    d: Literal["x", 2],
    e: int | str,
    f: Any,
    g: list,
    h: list[int] | str,
) -> object:
    """Takes all kinds.

    Args:
      a: 1
      b: 2
      c: 3
      d: 4
      e: 5
      f: 6
      g: 7
      h: 8
    """


class Kitchen:
    def cook(self, dish: str, hot: float | None = None):
        """Cooks.

        Args:
            dish: what
            hot: how hot

        Raises:
            ValueError: never
        """


_READS_TYPES = [int(part) for part in transformers.__version__.split(".")[:2]] >= [5, 24]
"""Whether it takes ``days (int): ...`` for the description of ``days``; before, it found none."""


@pytest.mark.parametrize("function", [forecast] * _READS_TYPES + [mixed, Kitchen().cook])
def test_functions_are_described_as_transformers_describes_them(function):
    """Tools are given as functions in transformers; a schema that differs is another prompt."""
    from transformers.utils import get_json_schema

    (schema,) = schemas_of([function])
    assert json.dumps(schema) == json.dumps(get_json_schema(function))


def bare(a: int): ...


def untold(a: int, b: int):
    """Does.

    Args:
        a: one
    """


def unhinted(a):
    """Does.

    Args:
        a: one
    """


def odd(a: json.JSONDecoder):
    """Does.

    Args:
        a: one
    """


@pytest.mark.parametrize(
    ("tools", "part"),
    [
        (WEATHER, "must be a list"),
        ([3], "tools[0] is a int"),
        ([{"a": {1}}], "tools[0] is no JSON"),
        ([WEATHER, bare], "tools[1], the function bare, has no docstring"),
        ([untold], "does not describe its argument 'b'"),
        ([unhinted], "no type hint for its argument 'a'"),
        ([odd], "takes 'a'"),
    ],
)
def test_wrong_tools(tools, part, refused):
    """A tool that cannot be described is named."""
    with refused(OptionError, part):
        schemas_of(tools)
