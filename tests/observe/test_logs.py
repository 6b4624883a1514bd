"""Structured logs: each record says where it was logged, and no secret is in it."""

import io
import json
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from perdure.app import App
from perdure.base.secret import Secret
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.observe.logs import LogFormat, configure
from tests.support.engine import durable, nodes

log = logging.getLogger("shop")


@contextmanager
def logging_to(stream: io.StringIO, style: LogFormat) -> Generator[None]:
    root = logging.getLogger()
    level = root.level
    handler = configure(style, "INFO", stream)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@durable
async def test_a_record_in_a_step_says_which_job_step_and_attempt_it_is_of(app: App) -> None:
    @app.step
    async def charge(ctx: StepContext) -> None:
        log.info("charging", extra={"order": 7})

    @app.step
    def in_thread(ctx: SyncStepContext) -> None:
        log.info("in a thread")

    @app.job
    async def order(ctx: JobContext) -> str:
        log.info("begins")
        await charge()
        await in_thread()
        return nodes(app)[0].owner

    stream = io.StringIO()
    with logging_to(stream, "json"):
        async with app.running():
            handle = await app.submit(order(), tenant="acme")
            owner = await handle.result()
        log.info("outside")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    begins, charging, threaded, outside = [each for each in lines if each["logger"] == "shop"]
    ours = {"job": handle.id, "job_name": "order", "tenant": "acme", "worker": owner}
    assert begins.items() >= ours.items()
    assert "step" not in begins
    assert charging.items() >= {**ours, "step": "charge#1", "attempt": 1, "order": 7}.items()
    assert threaded.items() >= {**ours, "step": "in_thread#1", "attempt": 1}.items()
    assert "job" not in outside
    assert outside["level"] == "info"
    assert outside["time"].endswith("Z")


def test_no_secret_reaches_a_line() -> None:
    stream = io.StringIO()
    with logging_to(stream, "json"):
        try:
            raise ConnectionError("postgresql://kim:canary-1@db/x")
        except ConnectionError:
            log.exception("password=canary-2")
        more = {
            "api_key": "canary-3",
            "nested": [{"token": "canary-4"}],
            "secret": Secret("canary-5"),
        }
        log.warning("Authorization: Bearer canary-6", extra=more)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(lines) == 2
    assert "ConnectionError" in lines[0]["error"]
    assert "canary" not in stream.getvalue()


@pytest.mark.parametrize("text", ["two\nlines", "rtl \u202e", "\x1b[31mred"])
def test_a_record_is_one_line_without_hidden_characters(text: str) -> None:
    stream = io.StringIO()
    with logging_to(stream, "json"):
        log.info(text)
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    told: dict[str, Any] = json.loads(line)
    assert told["message"] == text


def test_what_cannot_be_shown_does_not_lose_the_record() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no")

    stream = io.StringIO()
    with logging_to(stream, "json"):
        log.info("here", extra={"it": Broken()})
    assert json.loads(stream.getvalue())["it"] == "<Broken>"


def test_lines_for_people_are_as_before_outside_of_a_job() -> None:
    stream = io.StringIO()
    with logging_to(stream, "console"):
        log.info("up")
    assert stream.getvalue().endswith("  INFO  up\n")


@durable
async def test_a_line_for_people_names_its_job_once(app: App) -> None:
    @app.job
    async def order(ctx: JobContext) -> None:
        log.info("job %s begins", ctx.job_id)
        log.info("begins")

    stream = io.StringIO()
    with logging_to(stream, "console"):
        async with app.running():
            handle = await app.submit(order())
            await handle.result()
    ours = [line.partition("INFO  ")[2] for line in stream.getvalue().splitlines()]
    assert [f"job {handle.id} begins", f"begins  (job {handle.id})"] == [
        line for line in ours if "begins" in line
    ]
