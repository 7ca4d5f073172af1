"""Prometheus metrics: drafting under vLLM's names, which its tools read, and what else a server does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from selfspec.request import Completion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from selfspec.flight import Progress
    from selfspec.learning.learner import Learner
    from selfspec.server.scheduler import Scheduler

_LEARNED = {
    "rows": "Rows of verifications that were looked at.",
    "dropped": "Rows for which there was no time.",
    "steps": "Steps of the optimiser.",
    "kept": "Heads that drafted better in held-out rows, and draft since.",
    "thrown_away": "Heads that did not.",
    "cpu_seconds": "CPU seconds of the thread that learns.",
}
_NOW = {
    "first_alpha": "Acceptance in held-out rows of the head at the beginning.",
    "alpha": "Acceptance in held-out rows of the head that drafts.",
    "memory_bytes": "Bytes that learning takes.",
    "failed": "1 where learning has ended with an error.",
}
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Metrics:
    """Counters of one server, in a registry of its own; they are written by the scheduler's thread.

    A draft is a round in which something was drafted. As in vLLM, the mean acceptance length is
    1 + accepted tokens ÷ drafts.
    """

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, model: str) -> None:
        self._registry = registry = CollectorRegistry()
        self._model = model
        labels = ("model_name",)

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(name, text, (*labels, *more), registry=registry)

        self._drafts = counter("vllm:spec_decode_num_drafts", "Rounds in which tokens were drafted.")
        self._drafted = counter("vllm:spec_decode_num_draft_tokens", "Tokens that were drafted.")
        self._accepted = counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.")
        self._per_position = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by their depth in the draft.",
            "position",
        )
        self._tokens = counter("vllm:generation_tokens", "Tokens that were written.")
        self._prompt = counter("vllm:prompt_tokens", "Tokens of the prompts of texts that ended well.")
        self._asked = counter("vllm:prefix_cache_queries", "Tokens of prompts that were looked for in the cache.")
        self._cached = counter("vllm:prefix_cache_hits", "Tokens of prompts that were in the cache already.")
        self._ended = counter("selfspec:texts", "Texts that ended, by how.", "reason")
        self._rounds = counter("selfspec:rounds", "Rounds of all texts together.")
        self._row_layers = counter("selfspec:row_layers", "Layers times rows that ran, by what for.", "part")
        self._waited = Histogram(
            "selfspec:queue_seconds",
            "Seconds until a text got a slot.",
            labels,
            registry=registry,
            buckets=_SECONDS,
        )
        drafting = (self._drafts, self._drafted, self._accepted)
        for metric in (*drafting, self._tokens, self._prompt, self._asked, self._cached, self._rounds):
            metric.labels(model)  # zero is shown too

    def watch(self, scheduler: Scheduler) -> None:
        """Show what a scheduler holds now."""
        for name, text, read in (
            ("vllm:num_requests_running", "Texts with a slot.", lambda: scheduler.num_running),
            ("vllm:num_requests_waiting", "Texts that wait for a slot.", lambda: scheduler.num_waiting),
            ("selfspec:kv_bytes", "Bytes of the KV cache.", lambda: scheduler.kv_bytes),
        ):
            gauge = Gauge(name, text, ("model_name",), registry=self._registry)
            gauge.labels(self._model).set_function(read)

    def learns(self, learners: Callable[[], Iterable[Learner]]) -> None:
        """Show what those who learn have made of it; nothing where nobody does."""
        self._registry.register(_Learned(self._model, learners))

    def began(self, waited: float) -> None:
        """A text got a slot."""
        self._waited.labels(self._model).observe(waited)

    def progressed(self, progress: Progress) -> None:
        """A text moved on, or ended."""
        model, commit, end = self._model, progress.commit, progress.end
        if commit is not None:
            self._rounds.labels(model).inc()
            self._tokens.labels(model).inc(len(commit.tokens))
            self._row_layers.labels(model, "draft").inc(commit.draft_row_layers)
            self._row_layers.labels(model, "target").inc(commit.verify_row_layers)
            if commit.drafted:
                self._drafts.labels(model).inc()
                self._drafted.labels(model).inc(commit.drafted)
                self._accepted.labels(model).inc(commit.accepted)
            for position in range(commit.accepted):
                self._per_position.labels(model, str(position)).inc()
        if isinstance(end, Completion):
            self._prompt.labels(model).inc(end.prompt_tokens)
            self._asked.labels(model).inc(end.prompt_tokens)
            self._cached.labels(model).inc(end.cached_tokens)
            self._ended.labels(model, end.finish_reason).inc()
        elif end is not None:
            self._ended.labels(model, type(end).__name__).inc()

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(_WithoutCreated(self._registry))


class _Learned(Collector):
    """What learners say of themselves when they are asked, all of them together; α is that of the last one."""

    def __init__(self, model: str, learners: Callable[[], Iterable[Learner]]) -> None:
        self._model, self._learners = model, learners

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        found = [learner.facts() for learner in self._learners()]
        for name, text in _LEARNED.items() if found else ():
            metric = CounterMetricFamily(f"selfspec:learning_{name}", text, labels=("model_name",))
            metric.add_metric((self._model,), float(sum(facts[name] for facts in found)))
            yield metric
        for name, text in _NOW.items() if found else ():
            gauge = GaugeMetricFamily(f"selfspec:learning_{name}", text, labels=("model_name",))
            value = found[-1][name] if name in found[-1] else any(facts["failure"] for facts in found)
            if value is not None:
                gauge.add_metric((self._model,), float(value))
                yield gauge


class _WithoutCreated(CollectorRegistry):
    """Another registry's metrics without the times of their creation, which who adds up lines by name would add."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._all = registry

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        for metric in self._all.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
