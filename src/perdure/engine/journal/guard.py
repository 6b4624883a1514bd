"""The guard of the code of jobs: what leaves the program outside of a step is refused.

The code of a job runs again from its start after every interruption. A request, a connection or a
subprocess that it begins itself is in no journal, so it is begun again with every replay: a payment
is made twice, and nothing shows it. The guard stops it before it happens, parks the job, and
says what to write. Nothing is undone, since a forgotten line is no failure: mended code resumes the
job.

`guarded` holds the guard of the job whose code is running. It is a context variable, so it goes
with that code into its tasks and threads. A step has none, nor has a block of
`JobContext.unrecorded`. What the engine does in between, such as its own calls of the
database, is told by the stack: see `call_site`.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from inspect import currentframe
from threading import get_ident
from typing import Any

from perdure.base.errors import UnrecordedIO
from perdure.engine.journal.call_site import CallSite, call_site, code_places, is_own_work, stack
from perdure.engine.journal.entry_points import Describe, watch
from perdure.engine.journal.run import Run
from perdure.jobs.definition import GuardMode, JobDefinition

_log = logging.getLogger("perdure.worker")

_told: set[tuple[str, int]] = set()  # the lines that were warned of
_installed = False


class Guard:
    """Watches the code of one run of a job."""

    __slots__ = ("_function", "_mode", "_run")

    def __init__(self, run: Run, mode: GuardMode, function: Callable[..., Any]) -> None:
        self._run = run
        self._mode: GuardMode = mode
        self._function = function

    def meet(self, describe: Describe, args: Any) -> None:
        """Refuse something that is about to happen, or warn of it.

        Raises:
            UnrecordedIO: It is refused, and did not happen.
        """
        places = stack(currentframe())
        if is_own_work(places) or (act := describe(args)) is None:
            return
        run = self._run
        site = call_site([*places, *code_places(run.process.coro, run.thread)], self._function)
        if self._mode == "warn":
            if site.line not in _told:
                _told.add(site.line)
                _log.warning("%s", _text(run.job.name, act, site))
            return
        error = UnrecordedIO(_text(run.job.name, act, site), act, site.where)
        run.refuse(error)
        if get_ident() != run.thread:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                run.node.loop.call_soon_threadsafe(run.refuse, error)
        raise error


def _text(job: str, act: str, site: CallSite) -> str:
    steps = 'make it a step (`@app.step`, or `ctx.call("name", …)`)'
    if site.framework is None:
        advice = f"{steps[0].upper()}{steps[1:]}"
    else:
        name, line = site.framework
        advice = f"{name} asked for it, and not through Perdure: {line}; or {steps}"
    return (
        f"the code of job {job} begins {act} outside of a step, at {site.where}. Nothing would "
        f"record it, so every replay of the job would do it again. {advice}. If it may be "
        'repeated, `with ctx.unrecorded("why"):` allows it'
    )


guarded: ContextVar[Guard | None] = ContextVar("perdure.guarded", default=None)


def begin_guard(run: Run, definition: JobDefinition[..., Any]) -> None:
    """Watch the code that runs from here on, as its job or its app wants it."""
    mode = definition.guard or run.node.registry.guard
    if mode != "off":
        _install()
        guarded.set(Guard(run, mode, definition.fn))


def end_guard() -> None:
    """Watch nothing that follows here: it is not the code of a job."""
    guarded.set(None)


@contextlib.contextmanager
def unguarded() -> Generator[None, None, None]:
    """Refuse nothing in a block, nor in the tasks and threads that it starts."""
    token = guarded.set(None)
    try:
        yield
    finally:
        guarded.reset(token)


def _install() -> None:
    """Watch this program, once: what is watched cannot be unwatched."""
    global _installed  # noqa: PLW0603  it is the program that is watched
    if not _installed:
        _installed = True
        watch(_meet)
        _carry_into_pools()


def _meet(describe: Describe, args: Any) -> None:
    guard = guarded.get()
    if guard is not None:
        with unguarded():  # describing it, and logging it, must not be met again
            guard.meet(describe, args)


def _carry_into_pools() -> None:
    """Let the guard go with a call into a thread pool, as it goes into `asyncio.to_thread`.

    So it does with `loop.run_in_executor`, whichever pool and whichever loop.
    """
    submit = ThreadPoolExecutor.submit

    @functools.wraps(submit)
    def carrying(pool: ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        guard = guarded.get()
        if guard is not None:
            fn = functools.partial(_under, guard, fn)
        return submit(pool, fn, *args, **kwargs)

    ThreadPoolExecutor.submit = carrying


def _under(guard: Guard, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    token = guarded.set(guard)
    try:
        return fn(*args, **kwargs)
    finally:
        guarded.reset(token)
