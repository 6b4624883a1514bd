"""A worker that is a thread of this program, with a loop of its own."""

import asyncio
import logging
import threading

from perdure.base.errors import HostDown, Shutdown
from perdure.process.hosts import signals
from perdure.process.hosts.first_node import FirstNode
from perdure.process.hosts.node import Node
from perdure.process.hosts.shared import share
from perdure.process.hosts.worker import OnDown, OnReady, Plan
from perdure.process.run import close_loop
from perdure.process.runtime import Runtime

_log = logging.getLogger("perdure.host")

_JOIN = 1.0  # seconds that a thread gets to end when its loop has said goodbye
_LAST_JOIN = 0.2  # and when the program ends, whose threads are given up anyway


class ThreadWorker:
    """One thread of a host."""

    def __init__(
        self, first: FirstNode, plan: Plan, label: str, on_ready: OnReady, on_down: OnDown
    ) -> None:
        self.label = label
        self.load = 0
        self.ready = False
        self.doomed = False  # a thread cannot be killed
        self.sacrificed = False
        self._plan = plan
        self._first = first
        self._on_ready = on_ready
        self._on_down = on_down
        self._opened = threading.Event()
        self._failure: OSError | None = None  # instead of a loop
        self._timer: asyncio.TimerHandle | None = None
        self._cause: str | None = None  # why we ended it ourselves
        self._down = False
        self._thread = threading.Thread(target=self._run, name=label, daemon=True)

    def begin(self) -> None:
        """Start the thread, and wait the moment until it has a loop.

        Raises:
            OSError: It cannot have one.
            RuntimeError: There can be no more threads.
        """
        share(self._first.runtime)
        self._thread.start()
        self._opened.wait()
        if self._failure is not None:
            raise self._failure
        self.wire = self._first.hub.between(self._first, self.node)
        self._first.workers[self.wire] = self
        self.ready = True
        self._on_ready(self)

    def stop(self, timeout: float) -> None:
        """Let it end its processes; if its loop is blocked, nobody waits for ever."""
        self.wire.post(signals.Stop(timeout))
        self._wait(timeout, "it is blocked")

    def destroy(self, cause: str) -> None:
        """Kill its processes; the thread itself cannot be killed."""
        if not self._down:
            self._cause = self._cause or cause
            self.wire.post(signals.Stop(0.0))
            self._wait(0.0, cause)

    def _wait(self, timeout: float, cause: str) -> None:
        """Give it up if it does not end; nobody waits for ever."""
        if self._timer is not None:
            self._timer.cancel()
        patience = timeout + self._first.runtime.settings.abandon_after + _JOIN
        self._timer = self._first.runtime.loop.call_later(patience, self._give_up, cause)

    def _give_up(self, cause: str) -> None:
        _log.warning("the thread %s does not end (%s) and is abandoned", self.label, cause)
        self._is_down(cause)

    def reap(self) -> None:
        """Wait a moment for its end: no loop will hear of it."""
        self.destroy("the program ends")
        self._thread.join(_LAST_JOIN)
        self._is_down(self._cause)

    def on_stopped(self) -> None:
        """Take note that its loop has ended all processes."""
        self._thread.join(_JOIN)
        self._is_down(self._cause)

    def _is_down(self, cause: str | None) -> None:
        if self._down:
            return
        self._down = True
        if self._timer is not None:
            self._timer.cancel()
        self._first.workers.pop(self.wire, None)
        reason = HostDown(self._plan.host, self.label, cause or "it was stopped")
        self._first.lose(self.wire, reason)
        self._first.hub.leave(self.node, reason)
        self._on_down(self, cause)

    # In the thread

    def make_loop(self) -> asyncio.AbstractEventLoop:
        """Make the loop of the thread."""
        return asyncio.new_event_loop()

    def make_runtime(self) -> Runtime:
        """Make the runtime of the thread."""
        first = self._first.runtime
        return Runtime(first.settings, clock=first.clock)

    def _run(self) -> None:
        first, runtime = self._first.runtime, self.make_runtime()
        runtime.host_name = self._plan.host
        runtime.stopping = Shutdown(f"host {self._plan.host!r} stops")
        runtime.names, runtime.entries, runtime.hosts = first.names, first.entries, first.hosts
        try:
            loop = self.make_loop()
        except OSError as error:  # no descriptors are left
            self._failure = error
            self._opened.set()
            return
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._live(runtime))
        finally:
            close_loop(loop, runtime.settings.abandon_after)
            asyncio.set_event_loop(None)

    async def _live(self, runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        runtime.open(loop)
        share(runtime)
        self.node = node = Node(runtime)
        hub = self._first.hub
        hub.join(node)
        node.home = hub.between(node, self._first)
        asked: asyncio.Future[float] = loop.create_future()

        def on_stop(_: object, told: signals.Stop) -> None:
            if asked.done():
                runtime.kill_all()  # the second time is an order
            else:
                asked.set_result(told.timeout)

        node.handlers[signals.Stop] = on_stop
        self._opened.set()
        try:
            await runtime.stop(await asked)
        finally:
            node.close(HostDown(self._plan.host, self.label, "it was stopped"))
            runtime.close()
            node.home.post(signals.Stopped())
