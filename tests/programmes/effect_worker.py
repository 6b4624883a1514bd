"""A worker that dies at a named point, and the jobs that it works on.

`python -m tests.programmes.effect_worker` reads lines of JSON and forks a worker for each:
all is imported once, and nothing of one worker is left for the next.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx

from perdure import Retry
from perdure.app import App
from perdure.base.errors import Permanent
from perdure.engine import crashpoint
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext
from perdure.integrations.http import send

QUICK = WorkerSettings(
    lease="3s",
    heartbeat="300ms",
    stop_before_expiry="500ms",
    stuck_after="3s",
    keep_in_memory="20ms",
    poll="200ms",
    cancel_grace="100ms",
    drain_grace="2s",
    start_record_after="2s",  # so that nothing but the intent records a step
    reap_every="20ms",
    expiry_every="20ms",
)
RETRY = Retry(attempts=6, initial_delay="5ms", jitter=0)


def build(  # noqa: C901 - seven small functions
    url: str, gateway: str, in_doubt: str, key_ttl: float
) -> App:
    """Make the app: a payment, a step that may fail, and the refund."""
    app = App(url, worker=QUICK)
    options: Any = {"in_doubt": in_doubt, "key_ttl": key_ttl}

    async def post(ctx: StepContext, path: str) -> str:
        async with httpx.AsyncClient(base_url=gateway) as client:
            reply = await send(ctx, client, "POST", path, kind=path[1:], **options)
        return str(reply["body"]["id"])

    @app.step(retry=RETRY)
    async def pay(ctx: StepContext) -> str:
        return await post(ctx, "/pay")

    @pay.compensate(retry=RETRY)
    async def refund(ctx: StepContext, output: str | None) -> str:
        return await post(ctx, "/refund")

    @app.step(retry=RETRY)
    async def reserve(ctx: StepContext) -> str:
        return await post(ctx, "/reserve")

    @reserve.compensate(retry=RETRY)
    async def release(ctx: StepContext, output: str | None) -> str:
        return await post(ctx, "/release")

    @app.step
    async def check(ctx: StepContext, good: bool) -> None:
        if not good:
            raise Permanent("not in stock after all")

    @app.job(on_outage="fail")
    async def order(ctx: JobContext, good: bool) -> str:
        paid = await pay()
        await reserve()
        await check(good)
        return paid

    return app


def _work(wanted: dict[str, Any]) -> None:
    crashpoint.wanted = wanted["crash"]
    app = build(wanted["url"], wanted["gateway"], wanted["in_doubt"], wanted["key_ttl"])
    app.serve_sync()


def main() -> None:
    """Fork a worker for each line; say how it ended."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            with Path(os.devnull).open() as nothing:
                os.dup2(nothing.fileno(), 0)
            _work(json.loads(line))
            os._exit(0)
        print(child, flush=True)  # noqa: T201
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
