"""A server whose drafts learn: texts stay plain, and /metrics says what is learned."""

from __future__ import annotations

import pytest
from served import Running, until

import selfspec


@pytest.fixture
def learning(tiny):
    engine = selfspec.load(
        tiny, draft="early_exit", exit_layer=2, learn=True, learn_share=1.0, max_new_tokens=24, threads=1
    )
    running = Running(engine, slots=3)
    yield engine, running
    running.stop()
    for learner in engine.learners:
        learner.close()


def test_a_server_learns_from_all_its_texts(learning):
    """Guards the way through the scheduler: one learner, all slots, and its metrics."""
    engine, server = learning
    with server.client() as client:
        for number in range(6):
            asked = {"model": "tiny", "prompt": f"hello {number}", "temperature": 0, "max_tokens": 20}
            plain = client.completions.create(**asked, extra_body={"speculative": {"enabled": False}})
            found = client.completions.create(**asked)
            assert found.choices[0].text == plain.choices[0].text
    (learner,) = engine.learners
    until(lambda: learner.facts()["rows"] > 0)
    text = server.service.metrics.text().decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("selfspec:learning_"))
    rows = float(lines['selfspec:learning_rows_total{model_name="tiny"}'])
    assert 0 < rows <= learner.facts()["rows"]
    assert float(lines['selfspec:learning_failed{model_name="tiny"}']) == 0
    assert float(lines['selfspec:learning_memory_bytes{model_name="tiny"}']) > 1 << 20
    assert not any("learning_alpha" in name for name in lines)  # nothing was tried yet


def test_a_server_that_does_not_learn_says_nothing_of_it(server):
    """Guards dashboards: no metric that is always 0."""
    assert b"learning" not in server.service.metrics.text()
