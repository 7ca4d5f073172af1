"""Replicas behind Ray Serve (`pytest -m ray`; Ray in an environment of its own, docs/scaling.md)."""

from __future__ import annotations

import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from served import until

pytestmark = pytest.mark.ray
EXAMPLE = Path(__file__).parents[1] / "examples"
PORT = 8765
HI = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def replicas(tiny):
    """Two replicas of the example, on the tiny model."""
    try:
        import ray
        from ray import serve
    except ImportError:
        pytest.fail("this test needs Ray: pip install 'ray[serve]'", pytrace=False)
    sys.path.insert(0, str(EXAMPLE))
    import ray_serve

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": ":".join(sys.path)}},
    )
    serve.start(http_options={"port": PORT})
    made = ray_serve.Replica.options(
        num_replicas=2, autoscaling_config=None, ray_actor_options={"num_cpus": 0.5}, health_check_period_s=1
    )
    serve.run(made.bind(str(tiny), draft="ngram", threads=1), name="selfspec", route_prefix="/")
    yield serve
    serve.shutdown()
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_replicas_answer_stream_and_are_replaced(replicas):
    """Guards the example: OpenAI's client sees one server; streams come in pieces; a dead replica is replaced."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="none", timeout=120) as client:
        asked = {"model": "tiny", "messages": HI, "temperature": 0, "max_tokens": 400}
        extra = {"ignore_eos": True}
        want = client.chat.completions.create(**asked, extra_body=extra).choices[0].message.content

        def streamed(_):
            times, text = [], ""
            for chunk in client.chat.completions.create(**asked, extra_body=extra, stream=True):
                text += chunk.choices[0].delta.content or ""
                times.append(time.monotonic())
            return text, times[-1] - times[0]

        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(streamed, range(6)))
        assert {text for text, _ in found} == {want}
        assert min(seconds for _, seconds in found) > 0.01  # in pieces, not at its end

        def well():
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=30) as answer:
                return answer.status == 200

        assert well()
        import ray

        victims = [actor for actor in ray.util.list_named_actors(all_namespaces=True) if "Replica" in actor["name"]]
        assert len(victims) == 2
        ray.kill(ray.get_actor(victims[0]["name"], namespace=victims[0]["namespace"]))
        until(lambda: set(states(replicas)) == {"RUNNING"} and len(states(replicas)) == 2, 120)
        with ThreadPoolExecutor(4) as pool:
            assert {text for text, _ in pool.map(streamed, range(4))} == {want}


def states(serve):
    """The state of every replica."""
    (deployment,) = serve.status().applications["selfspec"].deployments.values()
    return [state for state, count in deployment.replica_states.items() for _ in range(count)]
