"""A step in another OS process, seen from here: it is started, served, and killed if need be.

The function runs there with a context that looks the same; what it saves comes here as a request
and is written here, fenced, as everything else.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from perdure.base.codec import decode
from perdure.base.errors import HostDown, SpawnError, StepCrashed
from perdure.base.retry import pause
from perdure.engine.far_desk import Desk
from perdure.engine.far_step import Facts, Failed, Finished, SafePoint, work_far
from perdure.engine.leaving import AtSafePoint
from perdure.jobs.partial import Partial
from perdure.process.birth import Options, give_birth
from perdure.process.channel import select
from perdure.process.current import current
from perdure.process.death import kill
from perdure.process.event import Cancel, Exit, ExitResult
from perdure.process.hosts.host import ProcessHost
from perdure.process.messaging import send
from perdure.process.process import Process
from perdure.process.request import Request
from perdure.process.signal import monitor, stop_politely

if TYPE_CHECKING:
    from perdure.engine.node import Node
    from perdure.engine.step import StepOperation
    from perdure.engine.step_context import StepContext

# So often a step that waits for its turn says that it does.
_PATIENCE = 0.5

# How long to wait for a place that is being made free.
_LOOK_AGAIN = 0.02

# A step that kills its OS process again and again must not end the host for the others.
_MOST_DEATHS, _WITHIN = 1000, 60


class StepHost:
    """The OS processes for steps of one worker; they are started when the first step wants one."""

    def __init__(self, owner: str, places: int) -> None:
        self.name = f"perdure.steps.{owner}"
        self.wanted = asyncio.Event()
        self.ready = asyncio.Event()
        self.places = asyncio.Semaphore(places)
        self.workers = places


async def keep_host(node: "Node") -> None:
    """Be where the OS processes for steps belong; for ever."""
    steps = node.step_host
    await steps.wanted.wait()
    host = ProcessHost(
        steps.name,
        kind="os",
        workers=steps.workers,
        dedicated=True,
        kill_after=node.settings.cancel_grace,
        max_restarts=_MOST_DEATHS,
        max_seconds=_WITHIN,
    )
    async with host:
        me = current("the host of steps")
        keeper = monitor(me, host.pid)
        steps.ready.set()
        try:
            while True:
                match await me.events().receive():
                    case Cancel():
                        return
                    case Exit(ref=ref, result=result) if ref is keeper:
                        raise result.error or RuntimeError("the host of steps has ended")
                    case _:
                        pass
        finally:
            steps.ready.clear()


async def call_far(operation: "StepOperation[Any]", context: "StepContext") -> Any:
    """Run a step in an OS process of its own; its time begins when the function does."""
    steps = operation.run.node.step_host
    me = current("a step")
    events, requests, signs = me.events(), me.requests(), me.listen("progress", whole=False)
    operation.disarm()
    steps.wanted.set()
    await _patiently(context, steps.ready.wait)
    await _patiently(context, steps.places.acquire)
    desk = Desk(operation, context, partial(_put_again, me))
    far = await _birth(operation, context, steps, me)
    while True:
        news: Any = (await select(requests, events, signs)).value
        match news:
            case Request():
                await desk.answer(cast("Request[Any]", news))
            case Exit(sender=sender, result=result) if sender is far.pid:
                if desk.leaving is not None:
                    raise desk.leaving
                return _outcome(operation, context, result)
            case Cancel():
                stop_politely(far, operation.run.node.settings.cancel_grace)
            case "begun":
                operation.arm()
                context.progress()
            case _:
                context.progress()


def _put_again(me: Process, request: Request[Any]) -> None:
    """Let a request be answered after what else there is."""
    if not me.done():
        send(me.pid, "progress", request)


async def _patiently(context: "StepContext", wait: Callable[[], Awaitable[object]]) -> None:
    """Wait for one's turn: a step that stands in a line is not stuck."""
    while True:
        context.progress()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await wait()
                return


async def _birth(
    operation: "StepOperation[Any]", context: "StepContext", steps: StepHost, me: Process
) -> Process:
    """Start it, with its end tied to ours: whoever kills this process kills that one."""
    args = (me.pid, _facts(operation, context))
    try:
        while True:
            try:
                options = Options(host=steps.name, monitor=True)
                far = give_birth(me.runtime, me, work_far, args, options)
                break
            except SpawnError:  # the one before has not quite gone
                await pause(_LOOK_AGAIN)
    except BaseException:
        steps.places.release()
        raise
    far.tie().at_death(steps.places.release)
    me.tie().at_death(lambda: None if far.done() else kill(far, "the step has ended"))
    return far


def _facts(operation: "StepOperation[Any]", context: "StepContext") -> Facts:
    step, run, entry = operation.step, operation.run, operation.entry
    assert entry.input is not None
    module = step.fn.__module__
    return Facts(
        module=module,
        file=getattr(sys.modules.get(module), "__file__", None),
        name=step.fn.__qualname__,
        input=entry.input,
        job_id=run.job.id,
        tenant=run.job.tenant,
        user=run.job.user,
        step_id=entry.id,
        attempt=operation.attempt,
        checkpoint=entry.checkpoint,
        checkpoint_no=entry.checkpoint_no,
        limits=run.node.limits,
        stopping=context.stopping,
    )


def _outcome(operation: "StepOperation[Any]", context: "StepContext", result: ExitResult) -> Any:
    """Give what the function gave, or raise what it raised."""
    match result.value:
        case Finished(output=output, checkpoint=None):
            return operation.step.unpack_result(output)
        case Finished(output=output, checkpoint=checkpoint):
            return Partial(operation.step.unpack_result(output), decode(checkpoint, Any))
        case SafePoint():
            raise AtSafePoint
        case Failed(error=error, item=item):
            context.item_judged = item
            raise error
        case _:
            why = result.error.cause if isinstance(result.error, HostDown) else result.error
            raise StepCrashed(f"the OS process of step {operation.entry.id} ended: {why}")
