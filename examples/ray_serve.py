"""Replicas of a selfspec server behind Ray Serve, as many as the requests need.

    pip install 'selfspec[serve]' 'ray[serve]'
    MODEL=./my-llama serve run ray_serve:app          # in this folder; http://localhost:8000/v1

Each replica loads the model and batches its own requests; Ray starts and ends replicas, spreads the requests,
replaces replicas that are not well, and passes streams through. docs/scaling.md explains the numbers.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from ray import serve
from starlette.applications import Starlette
from starlette.routing import Mount

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

SLOTS = 8  # texts at once of a replica; as many requests again may wait there


async def forward(scope: Scope, receive: Receive, send: Send) -> None:
    """Pass a request on to the application of the replica that it has come to."""
    replica: Any = serve.get_replica_context().servable_object
    await replica.served(scope, receive, send)


@serve.deployment(
    max_ongoing_requests=2 * SLOTS,
    autoscaling_config={"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": SLOTS},
    health_check_period_s=5,
    graceful_shutdown_wait_loop_s=1,
    graceful_shutdown_timeout_s=60,  # of an ending replica: what it has begun, it finishes
)
@serve.ingress(Starlette(routes=[Mount("/", app=forward)]))
class Replica:
    """A model with its scheduler."""

    def __init__(self, model: str, slots: int = SLOTS, **options: Any) -> None:
        import selfspec
        from selfspec.server.app import Service
        from selfspec.server.settings import ServerOptions

        engine = selfspec.load(model, **options)
        key = os.environ.get("SELFSPEC_API_KEY", "")
        self._service = Service(engine, ServerOptions(engine.name, slots=slots, queue=slots, api_key=key))
        self.served = self._service.app

    def check_health(self) -> None:
        """Raise where it takes no requests: then Ray puts another one in its place."""
        if not self._service.scheduler.is_open:
            raise RuntimeError("the engine's thread has ended")

    async def __del__(self) -> None:
        """Called when no request is left, or the time for it is over."""
        await asyncio.to_thread(self._service.close)


app = Replica.bind(os.environ.get("MODEL", "smollm2"))
