"""`perdure worker`: runs the jobs of an app; start as many workers as you like."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Generator
from enum import StrEnum
from typing import Annotated

import typer

from perdure import observe
from perdure.app import App
from perdure.base import telemetry
from perdure.base.errors import JobError, StoreError
from perdure.base.telemetry import Event, Values
from perdure.cli.output import Code, code_of, refuse
from perdure.cli.target import ConfiguredApp, UrlOption, load_app, spelled, which_app
from perdure.engine.events import JOB_END, JOB_PARK
from perdure.engine.settings import WorkerSettings
from perdure.engine.worker.worker import (
    runtime_settings,
    tune_interpreter,
    until_told_to_stop,
)
from perdure.jobs.model import QueueLimit
from perdure.observe.logs import configure
from perdure.process.runtime import run
from perdure.store.store import Store

_log = logging.getLogger("perdure.worker")

_HANDLER = "perdure.cli.worker"
_WARNED = ("FAILED", "COMPENSATED", "NEEDS_ATTENTION")  # what a person should know


class LogFormat(StrEnum):
    """How log records are written."""

    CONSOLE = "console"
    JSON = "json"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("worker")(worker)


def worker(  # noqa: PLR0913  an option is a parameter
    app: ConfiguredApp = None,
    *,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            envvar="PERDURE_CONCURRENCY",
            help="How many jobs run at once.",
        ),
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", "-q", help="A queue to serve; repeatable.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(envvar="PERDURE_LOG_FORMAT", help="Lines for people, or JSON for programs."),
    ] = LogFormat.CONSOLE,
    log_level: Annotated[
        str, typer.Option(envvar="PERDURE_LOG_LEVEL", help="The lowest level that is logged.")
    ] = "info",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            envvar="PERDURE_METRICS_PORT",
            help="Serve /metrics, /healthz and /readyz on this port; 0: any.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(envvar="PERDURE_METRICS_HOST", help="The address to serve them on.")
    ] = "127.0.0.1",
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            envvar="PERDURE_TRACE",
            help="Trace jobs with the OpenTelemetry of the program.",
        ),
    ] = False,
    trace_contents: Annotated[
        bool,
        typer.Option(
            "--trace-contents",
            envvar="PERDURE_TRACE_CONTENTS",
            help="Trace also what models are asked and answer, with everything that it holds.",
        ),
    ] = False,
    url: UrlOption = None,
) -> None:
    """Run the jobs of an app until it is stopped.

    The first Ctrl-C or SIGTERM lets every job reach a safe point, a second one stops at once.
    If a worker dies, no work is lost: another worker continues its jobs.
    """
    configure(log_format.value, logging.DEBUG if verbose else _level(log_level))
    loaded = load_app(which_app(app), url)
    _choose_queues(loaded, queue)
    settings = loaded.worker_settings
    if concurrency is not None:
        settings = dataclasses.replace(settings, concurrency=concurrency)
    tune_interpreter()
    telemetry.attach_many(_HANDLER, (JOB_END, JOB_PARK), _log_end)
    try:
        with (
            _observed(loaded, metrics_host, metrics_port),
            _traced(wanted=trace, contents=trace_contents),
        ):
            error = run(_work, loaded, settings, settings=runtime_settings(settings))
    except KeyboardInterrupt:  # before it was up, or the second one
        raise typer.Exit(Code.INTERRUPTED) from None
    finally:
        telemetry.detach(_HANDLER)
    if error is not None:
        refuse(str(error), code_of(error))


def _level(name: str) -> int:
    levels = logging.getLevelNamesMapping()
    if name.upper() not in levels:
        refuse(f"there is no log level {name!r}: debug, info, warning or error", Code.USAGE)
    return levels[name.upper()]


@contextlib.contextmanager
def _observed(app: App, host: str, port: int | None) -> Generator[None, None, None]:
    """Serve metrics and probes inside the block, if a port is given."""
    if port is None:
        yield
        return

    async def store() -> Store:
        for node in app.running_workers:
            return node.store
        raise StoreError("the worker is not up")

    metrics = observe.Metrics()
    endpoints = observe.Endpoints(store, metrics, lambda: app.running_workers, needs_worker=True)
    with metrics.listening(), observe.serving(endpoints, host, port) as served:
        if served is not None:
            _log.info("metrics: http://%s:%d/metrics", host, served)
        yield


def _traced(*, wanted: bool, contents: bool) -> contextlib.AbstractContextManager[None]:
    """Trace jobs inside the block."""
    try:
        return observe.tracing(contents=contents) if wanted else contextlib.nullcontext()
    except ModuleNotFoundError as error:
        refuse(str(error), Code.USAGE)


def _log_end(_event: Event, _numbers: Values, facts: Values, _config: object) -> None:
    """Log the end of a job; a telemetry handler."""
    level = logging.WARNING if facts["state"] in _WARNED else logging.DEBUG
    why = f": {facts['reason']}" if facts["reason"] else ""
    _log.log(level, "job %s (%s) is %s%s", facts["job_id"], facts["name"], facts["state"], why)


def _choose_queues(app: App, names: list[str] | None) -> None:
    if names:
        app.queues = {name: app.queues.get(name, QueueLimit()) for name in names}


async def _work(app: App, settings: WorkerSettings) -> JobError | None:
    try:
        async with app.running(settings):
            _log.info("up: %s", _description(app, settings))
            await until_told_to_stop()
            _log.info("stopping: other workers continue the jobs from where they are")
    except JobError as error:  # the store cannot be opened, or has another schema
        return error
    finally:
        await app.close()
    _log.info("down")
    return None


def _description(app: App, settings: WorkerSettings) -> str:
    queues = ", ".join(app.queues)
    known = f"jobs: {len(app.jobs)}, steps: {len(app.steps)}"
    return (
        f"process {os.getpid()} works on {spelled(app.url)} ({known}); "
        f"queues: {queues}; {settings.concurrency} jobs at once"
    )
