"""What a request says to the chat template; prompts as token ids; tokens that the tokenizer does not have."""

from __future__ import annotations

import pytest
from tiny_folder import write_model

import selfspec
from selfspec.errors import OptionError, PromptError
from selfspec.model.chat import TemplateInputs

TEMPLATE = (
    "{% for t in tools or [] %}[{{ t | tojson }}]{% endfor %}"
    "{% for d in documents or [] %}({{ d.title }}){% endfor %}"
    "{% if quick is defined %}quick={{ quick }};{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
ASK = [{"role": "user", "content": "hi"}]
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}


def add(a: int, b: int = 2) -> int:
    """Adds.

    Args:
        a: one number
        b: another
    """


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat") / "tiny"
    write_model(folder, vocab_size=300)  # 41 rows more than the tokenizer has tokens
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return selfspec.load(folder, runtime="torch", max_new_tokens=4)


def text_of(engine, *given, **options):
    return engine.tokenizer.decode(engine.encode(*given, **options), skip_special_tokens=False)


def test_tools_documents_and_options_reach_the_template(engine):
    """Guards the way from `generate` to the template, for prompts and for messages."""
    inputs = TemplateInputs(tools=[add], documents=[{"title": "T"}], chat_options={"quick": True})
    asked = {"tools": [add], "documents": [{"title": "T"}], "chat_options": {"quick": True}}
    assert text_of(engine, messages=ASK, **asked) == engine.tokenizer.render(ASK, True, inputs)
    assert text_of(engine, "hi", **asked) == engine.tokenizer.render(ASK, True, inputs)
    assert '"name": "add"' in text_of(engine, "hi", tools=[add])
    assert text_of(engine, "hi", chat_options=[("quick", 1)]).startswith("quick=1;")
    prompt = engine.encode("hi", tools=[add])
    assert engine.generate("hi", tools=[add]).prompt_tokens == len(prompt) > len(engine.encode("hi"))
    own = selfspec.Engine(engine.runtime, engine.tokenizer, "own", tools=[add], max_new_tokens=2)
    assert own.generate("hi").prompt_tokens == len(prompt)


def test_an_answer_goes_on(engine):
    """Guards answers that are begun for the model."""
    begun = [*ASK, {"role": "assistant", "content": "It is "}]
    assert text_of(engine, messages=begun, continue_final_message=True).endswith("<|im_start|>assistant\nIt is ")
    with pytest.raises(PromptError, match="a prompt has none"):
        engine.generate("hi", continue_final_message=True)


def test_a_batch_has_tools_of_its_own(engine):
    """Guards requests that differ in their tools."""
    asked = [{"messages": ASK, "tools": [{"name": "x"}]}, {"messages": ASK}, {"prompt": "hi", "tools": "x"}]
    found = dict(engine.batch(asked))
    assert found[0].prompt_tokens > found[1].prompt_tokens
    assert "tools are 'x'" in str(found[2])


def test_a_conversation_takes_results_of_tools(engine):
    """Guards the turn after a call of a tool, whose message is not the user's."""
    talk = engine.chat()
    talk.say("hi", tools=[add]).completion  # noqa: B018 - runs it
    result = talk.say({"role": "tool", "content": "3"}, tools=[add]).completion
    assert [m["role"] for m in talk.messages] == ["user", "assistant", "tool", "assistant"]
    whole = engine.generate(messages=talk.messages[:-1], tools=[add])
    assert result.token_ids == whole.token_ids
    assert text_of(engine, messages=[*ASK, CALL]).count('"a": 1') == 1


def test_token_ids_are_taken_as_they_are(engine):
    """Guards prompts that were encoded elsewhere: no BOS, no template, nothing silently left out."""
    ids = [5, 258, 258, 7]
    assert engine.encode(ids) == ids
    assert engine.generate(ids).prompt_tokens == len(ids)
    for name, value in {"tools": [add], "chat_options": {"quick": 1}, "documents": [{"title": "T"}]}.items():
        with pytest.raises(PromptError, match=f"{name} needs a text prompt"):
            engine.generate(ids, **{name: value})
        with pytest.raises(PromptError, match=f"{name} needs the chat template"):
            engine.generate("hi", chat=False, **{name: value})


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"tools": {"name": "x"}}, "tools are"),
        ({"tools": [3]}, r"tools\[0\] is a int"),
        ({"chat_options": 3}, "chat_options is 3"),
        ({"chat_options": {3: 1}}, "chat_options is"),
        ({"chat_options": {"slow": 1}}, "'slow'.*does not read; it reads .*quick"),
        ({"chat_template": 3}, "chat_template is 3"),
        ({"chat_template": "rag"}, "'rag'; this model has default"),
        ({"documents": ["x"]}, "list of objects"),
    ],
)
def test_wrong_options(engine, options, part):
    """Guards one line for each mistake."""
    with pytest.raises(OptionError, match=part):
        engine.generate("hi", **options)


# -- a padded vocabulary ----------------------------------------------------------------------------------

BEYOND = 290


def only_beyond(tokens, logits):
    """A model that writes a token, then a row of its embeddings that is no token, then both again."""
    logits = logits.copy()
    logits[BEYOND if len(tokens) % 2 else 65] += 1e4
    return logits


@pytest.mark.parametrize("draft", ["plain", "ngram", "early_exit"])
def test_a_row_without_a_token_has_no_text(engine, draft):
    """Guards padded embeddings: such a token counts and is read again, as in transformers; it has no text."""
    asked = {"draft": draft, "max_new_tokens": 12, "processors": [only_beyond], "ignore_eos": True}
    stream = engine.stream([5, 6, 7], **asked)
    chunks = list(stream)
    found = stream.completion
    assert found.token_ids == (BEYOND, 65) * 6
    letter = engine.tokenizer.decode([65])
    assert found.text == "".join(chunk.text for chunk in chunks) == letter * 6
    assert engine.tokenizer.decode(found.token_ids) == found.text
    assert engine.generate([5, BEYOND, 6]).token_ids  # and it may be part of a prompt
    with pytest.raises(PromptError, match="300 is outside"):
        engine.generate([5, 300])
