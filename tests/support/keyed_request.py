"""Sends one request with a key to the API of an app, and may kill itself at one of its commits.

    python -m tests.support.keyed_request URL KEY COMMIT [pause]

COMMIT counts from 1; 0 kills nothing. The request submits a job, or pauses all. It prints the
status of the answer, and the id of the job or how many jobs were paused.
"""

import asyncio
import itertools
import os
import signal
import sys
from typing import Any

from perdure import App
from perdure.base import telemetry
from perdure.store.db_thread import BATCH
from tests.support.web_client import api_of

_WRITERS = ("perdure-writer", "perdure-control")


def _kill_at(commit: int) -> None:
    """Kill this program when its store has made so many commits, before anybody learns of it."""
    counted = itertools.count(1)

    def handler(event: Any, measured: Any, metadata: Any, config: Any) -> None:
        del event, measured, config
        if metadata["thread"] in _WRITERS and next(counted) == commit:
            os.kill(os.getpid(), signal.SIGKILL)

    telemetry.attach("kill", BATCH, handler)


async def main() -> None:
    """Send it."""
    url, key, commit = sys.argv[1], sys.argv[2], int(sys.argv[3])
    app = App(url)

    @app.job
    async def twice(number: int) -> int:
        return 2 * number

    del twice
    async with api_of(app) as client:
        await client.get("/api/v1/jobs")  # the store is open
        if commit:
            _kill_at(commit)
        headers = {"idempotency-key": key}
        if sys.argv[4:] == ["pause"]:
            path, body, field = "/api/v1/jobs/bulk", {"action": "pause", "q": ""}, "affected"
        else:
            path, body, field = "/api/v1/jobs", {"name": "twice", "arguments": [1]}, "id"
        answer = await client.post(path, json=body, headers=headers)
        sys.stdout.write(f"{answer.status_code} {answer.json()[field]}\n")


if __name__ == "__main__":
    asyncio.run(main())
