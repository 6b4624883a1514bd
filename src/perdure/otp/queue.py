"""The one queue of a server: messages, events and requests in the order of their arrival.

A server that is called while it is idle answers *at once*:
the caller lets it run a step right where it is, instead of waiting for the scheduler twice.
For both it looks as if the scheduler had happened to choose that order,
and a call costs half.
"""

import types
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from perdure.base.duration import Duration, seconds
from perdure.base.pid import Pid
from perdure.process.current import own_process
from perdure.process.mailbox import Inlet
from perdure.process.process import Process
from perdure.process.request import Request, ask
from perdure.process.tasklike import DEAD, PARKED, READY, RUNNING, RUNNING_TASKS
from perdure.process.waiter import PARK

_LONG = 1e9  # seconds; whether a longer time-out is one at all is looked at with more care


class Queue(Inlet[Any]):
    """All that a server receives."""

    __slots__ = ("_calls", "idle", "items")

    def __init__(self, owner: Process) -> None:
        super().__init__(owner)
        self._items = self.items = deque[Any]()  # always the same, so that the server may keep it
        self.asked = True
        self.idle = False  # whether the server waits for the next item, and for nothing else
        self._calls = owner.tie().open_calls()

    def put(self, value: Any) -> None:
        """Add an item, and wake the server."""
        if self.idle:
            self.items.append(value)
            owner: Any = self.owner
            owner.wake()
        else:  # it is busy, or its own code reads the inbox in a callback
            super().put(value)

    def remove(self, unwanted: Callable[[Any], bool]) -> list[Any]:
        """Take out the items that are unwanted, in order."""
        items = list(self.items)
        self.items.clear()
        self.items.extend(item for item in items if not unwanted(item))
        return [item for item in items if unwanted(item)]

    def serve_at_once(self, body: object, caller: Process) -> "Request[Any] | None":
        """Let the server take a request right now, if it is idle; else give None."""
        owner: Any = self.owner
        if not self.idle or owner.state != PARKED:
            return None
        scheduler = owner.scheduler
        scheduler.out_of_turn -= 1
        if scheduler.out_of_turn <= 0:  # so many in a row: now everybody else gets a turn
            scheduler.out_of_turn = scheduler.in_a_row
            return None
        loop = owner.loop
        asked: Request[Any] = Request(owner.pid, body, caller.pid, caller, None)
        self.items.append(asked)
        owner.state = READY
        RUNNING_TASKS[loop] = owner
        try:
            owner.step()
        finally:
            RUNNING_TASKS[loop] = caller
        if not asked.done:
            self._keep(asked)
        return asked

    def _keep(self, asked: Request[Any]) -> None:
        """Let the death of the server end a request, as soon as it is not answered at once."""
        owner: Any = self.owner
        if owner.state == DEAD:
            asked.fail(owner.outcome.error)
        else:
            asked.keep(self._calls)


def one_queue(process: Process) -> Queue:
    """Give a process one queue for all that it receives; what waits already comes first."""
    queue = Queue(process)
    process.unify(queue)
    return queue


@types.coroutine
def request(pid: Pid, body: object, timeout: Duration) -> Generator[Any, None, Any]:
    """Send a request to a server and wait for the answer; as `process.call`, if it is no server.

    Raises:
        CallTimeout: No reply came in time; a late one is dropped.
        CallExit: The process died, or was dead; `reason` says why.
    """
    server: Any = pid.target
    caller: Any = own_process(None)
    # A server that calls another waits as usual, so that such steps do not nest.
    if (
        server is not None
        and caller is not None
        and caller.state == RUNNING
        and (server.loop is caller.loop)
    ):
        queue = server._requests  # noqa: SLF001 - the field of our queue
        if type(queue) is Queue and type(caller._requests) is not Queue:  # noqa: SLF001
            # The plain number of nearly all calls, without two calls more.
            if type(timeout) is float and 0.0 <= timeout < _LONG:
                limit = timeout
            else:
                limit = seconds(timeout)
            asked = queue.serve_at_once(body, caller)
            if asked is not None:
                if asked.done and not caller.must_cancel:
                    return asked.answer_at_once()
                return (yield from _answer(asked, caller, limit))
    waiting: Any = ask(server, pid, body, timeout)
    return (yield from waiting)  # pyright: ignore[reportUnknownVariableType] - so is `yield from`


def _answer(asked: Request[Any], caller: Process, limit: float | None) -> Generator[Any, None, Any]:
    """Wait for a server that takes its time."""
    if asked.done:  # it died, and the caller with it
        yield PARK
    elif limit is not None:
        caller.runtime.deadlines.add(limit, asked)
    try:
        while not asked.done:
            yield PARK
    finally:
        asked.give_up()
    return asked.answer()
