"""Trained heads as drafters: what they draft is what the definition says, whatever happened before."""

from __future__ import annotations

import pytest
from doubles import Host, run, tiny_runtime
from head_oracle import draft_logits
from random_heads import fitted_eagle, nearly_untrained, random_facts

from selfspec import drafters
from selfspec.model.head_file import write_head

PROMPTS = [[5, 17, 3, 3, 42, 5, 17], [1], [9, 9, 9, 9, 2]]
FORMS = {
    "linear": random_facts("exit_head", "linear", taps=(4,)),
    "attention": random_facts("exit_head", "attention", taps=(4,)),
    "layer": random_facts("exit_head", "layer", taps=(4,)),
    "eagle": random_facts("eagle"),
}


@pytest.fixture(scope="session")
def heads(tmp_path_factory):
    """A head of each form, in a file, with a trimmed vocabulary; accepted now and then."""
    folder, made = tmp_path_factory.mktemp("heads"), {}
    runtime = tiny_runtime()
    texts = [text.tokens for text in run(runtime, PROMPTS, new_tokens=16)]
    for name, facts in FORMS.items():
        if name == "eagle":
            head = fitted_eagle(runtime, facts, texts)
        else:
            head = nearly_untrained(
                runtime, facts, [token for token in range(61) if token % 20 != 4] if name == "attention" else None
            )
        path = folder / f"{name}.safetensors"
        write_head(path, head)
        made[name] = (str(path), head)
    return made


def drafter_of(runtime, path, **options):
    kind = "eagle" if "eagle" in path else "early_exit"
    return drafters.create(kind, runtime.config, {"head": path, **options}, Host(runtime, {}))


@pytest.mark.parametrize("form", FORMS)
def test_drafts_are_those_of_the_definition(heads, form, monkeypatch):
    """Guards every cell, position and row: ragged texts, partial and whole acceptance, one by one."""
    runtime, (path, head) = tiny_runtime(), heads[form]
    drafter = drafter_of(runtime, path, gamma=3)
    proposed, propose, accepted = [], drafter.propose, []

    def propose_and_note(context, texts, gammas):
        found = propose(context, texts, gammas)
        proposed.extend((list(text.tokens), draft.tokens) for text, draft in zip(texts, found, strict=True))
        return found

    monkeypatch.setattr(drafter, "propose", propose_and_note)
    each_round = lambda *given: accepted.extend(c.accepted for c in given[2].commits)  # noqa: E731
    run(runtime, PROMPTS, drafter, new_tokens=16, each_round=each_round)
    assert {0, 3} <= set(accepted)  # a draft that fails and one that holds whole
    for tokens, drafted in proposed:
        want = [int(row.argmax()) for row in draft_logits(runtime, head, tokens, len(drafted))]
        assert list(drafted) == want, len(tokens)
    assert sum(len(drafted) for _, drafted in proposed) > 40
