"""Run the bodies of `@simulated` tests on a worker of a host: in a thread, or in an OS process.

`scripts/test --host threads` runs the behaviour suites of the kernel and of the OTP layer in a
thread, `--host os` in a child OS process; everyday runs do that with some of their files.
What cannot hold there is skipped, each with its reason.
"""

import functools
import inspect
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure import testing
from perdure.process import runtime as running
from perdure.process.api import wait_exit
from perdure.process.event import ExitResult
from perdure.process.hosts import signals
from perdure.process.hosts.root_node import RootNode, root_node_of
from perdure.process.hosts.workers import ThreadWorker, WorkerOptions
from perdure.process.lifecycle import make_coroutine
from perdure.process.process import current
from perdure.process.runtime import LoopRuntime
from perdure.testing import simulation
from tests.support.virtual_child import (
    Show,
    VirtualProgram,
    be_a_body,
    be_a_test,
    parameters,
)

KIND = os.environ.get("PERDURE_TEST_HOST", "inline")

_PLAN = WorkerOptions("worker", 65_536, None, None)


# What cannot hold on a worker, by a part of the test's id, with the reason.
_NOT_ON_A_WORKER = {
    "test_pid.py::test_a_pid_prints_its_host": "its host has another name",
    "otp/test_crash_report.py::test_the_report_names_the_supervisor": "its host has another name",
    "test_table_owner.py::test_a_table_that_changes_hands_a_thousand": (
        "the first process has one hook more: its end is told to another loop"
    ),
    "test_run.py::test_a_keyboard_interrupt_in_a_process": "only the first loop ends the program",
}


def reason_to_skip(test: str) -> str | None:
    """Say why a test cannot hold on the worker that the environment asks for; None if it can."""
    if KIND == "inline":
        return None
    return next((why for part, why in _NOT_ON_A_WORKER.items() if part in test), None)


def install() -> None:
    """Put the body of every simulation on a worker, if the environment says so."""
    if KIND == "threads":
        simulation.run_in = _run_in_thread
    elif KIND == "os":
        testing.simulate = simulation.simulate = _simulate_in_child


# A thread: a worker whose loop and runtime are those of the simulation


def _nothing(*_: object) -> None:
    """Need no word of a worker."""


class _Worker(ThreadWorker):
    def __init__(self, first: RootNode, runtime: LoopRuntime, loop: Any, ended: Any) -> None:
        super().__init__(first, _PLAN, "worker.1", _nothing, _nothing)
        self._given = runtime, loop
        self._ended = ended

    def make_runtime(self) -> LoopRuntime:
        return self._given[0]

    def make_loop(self) -> Any:
        return self._given[1]

    def _run(self) -> None:
        try:
            super()._run()
        except BaseException as error:  # noqa: BLE001 - raised in the test
            self._ended(error)
        else:
            self._ended(None)


def _run_in_thread(runtime: LoopRuntime, main: Any, args: tuple[Any, ...], make_loop: Any) -> Any:
    """Run `main` on a worker; give its value or raise its error, as `run_in` does."""
    running.check_function(main, "run")

    async def first() -> ExitResult:
        me = current()
        node, loop = root_node_of(me.runtime), me.loop
        ended: Any = loop.create_future()

        def on_end(error: BaseException | None) -> None:
            loop.call_soon_threadsafe(ended.set_result, error)

        worker = _Worker(node, runtime, make_loop(), on_end)
        worker.start()
        process = runtime.process_class(runtime, main, args, make_coroutine(main, args), None, {})
        runtime.root = process
        worker.wire.post(signals.StartSignal(process))
        proxy = node.add_proxy(process.pid, worker.wire, full=True)
        await wait_exit(proxy)
        worker.stop(runtime.settings.stop_timeout, interrupt=True)
        error = await ended
        if error is not None:
            raise error
        assert process.outcome is not None
        return process.outcome

    outcome = perdure.run(first)
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


# An OS process: one for all tests, whose loop and runtime are set anew for each


@functools.cache
def _program() -> VirtualProgram:
    return VirtualProgram()


class Whole(BaseException):
    """Only a whole test can run in the child: what it simulates is local to it."""


def _simulate_in_child(main: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Run the body of a test in the child, by its name."""
    function, keywords = main, {}
    if isinstance(main, functools.partial):
        function, args, keywords = main.func, (*main.args, *args), main.keywords
    name, module = function.__qualname__, function.__module__
    by_name = inspect.isfunction(function) and "<locals>" not in name
    if not by_name or not _can_cross((args, keywords)):
        raise Whole
    return _program().run(be_a_body, module, name, args, keywords, Show(**options))


def run_test(item: pytest.Function) -> None:
    """Run a test; in the child, as a whole, if its parts cannot run there alone."""
    wanted = inspect.signature(item.obj).parameters
    values = {name: item.funcargs[name] for name in wanted}
    try:
        item.obj(**values)
    except Whole:
        plain = {name: value for name, value in values.items() if _can_cross(value)}
        places = {
            name: _place(parameters(item.obj, name), value)
            for name, value in values.items()
            if name not in plain
        }
        _program().run(be_a_test, item.obj.__module__, item.originalname, plain, places)


def _place(values: list[Any], value: object) -> int:
    """Say which of its values a parameter has, for one that cannot cross."""
    for place, each in enumerate(values):
        if each is value:
            return place
    pytest.skip(f"a fixture cannot cross to another OS process: {type(value).__name__}")


def _can_cross(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever a class raises
        return False
    return True
