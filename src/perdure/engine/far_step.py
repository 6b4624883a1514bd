"""A step in another OS process, seen from there: its function is found, and called.

The context is the ordinary one; only what it stands on is made of messages to the process
that asked for the step.
"""

import asyncio
import importlib
import os
import signal
import sys
from functools import reduce
from typing import Any, cast

from msgspec import Struct

from perdure.base.codec import Limits
from perdure.base.errors import Drift
from perdure.base.pid import Pid
from perdure.engine.away import call_away
from perdure.engine.far_context import FarContext, ask_desk
from perdure.engine.leaving import Leaving
from perdure.engine.step_context import StepContext
from perdure.jobs.definition import Step, step_of
from perdure.jobs.failure import failure_of
from perdure.jobs.item import Verdict
from perdure.jobs.partial import Partial
from perdure.jobs.step_class import is_step_class, step_of_object
from perdure.process.hosts.portable import MISSING, import_file
from perdure.process.messaging import send


class Facts(Struct, frozen=True, kw_only=True):
    """What the other process needs to know of a step and its job."""

    module: str
    file: str | None
    name: str
    input: bytes
    job_id: str
    tenant: str
    user: str
    step_id: str
    attempt: int
    checkpoint: bytes | None
    checkpoint_no: int
    limits: Limits
    stopping: bool


class Finished(Struct, frozen=True):
    """The function returned; with a checkpoint, it is not done yet."""

    output: bytes
    checkpoint: Any = None


class Failed(Struct, frozen=True):
    """The function raised, perhaps at an item, which was judged there."""

    error: BaseException
    item: tuple[Verdict, bytes] | None


class SafePoint(Struct, frozen=True):
    """The function left where it may be left: at a checkpoint, or because the desk said so."""


async def work_far(desk: Pid, facts: Facts) -> Finished | Failed | SafePoint:
    """The process of an attempt in another OS process."""
    context = FarContext(desk, FarOperation(desk, facts))
    context.stopping = facts.stopping
    try:
        step = find_step(facts)
        args, kwargs = step.unpack(facts.input)
        send(desk, "progress", "begun")
        if step.is_async:
            value = await step.fn(context, *args, **kwargs)
        else:  # in a thread, so that this process still answers while it works
            value = await _call_beside(step, context, args, kwargs)
        if type(value) is Partial:
            partial = cast("Partial[Any]", value)
            so_far = step.pack_result(partial.output, facts.limits)
            return Finished(so_far, context.encode_checkpoint(partial.checkpoint))
        return Finished(step.pack_result(value, facts.limits))
    except Leaving:
        return SafePoint()
    except Exception as error:  # noqa: BLE001 - it is told to the process that asked
        return Failed(error, context.judge_item(failure_of(error, facts.attempt)))


async def _call_beside(
    step: Step[..., Any], context: StepContext, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a sync function; it ends for certain only with its OS process, which is its alone."""
    try:
        return await call_away(step.fn, context, args, kwargs)
    except asyncio.CancelledError:
        os.kill(os.getpid(), signal.SIGKILL)
        raise


class FarOperation:
    """What a context stands on, as far as it is needed there."""

    def __init__(self, desk: Pid, facts: Facts) -> None:
        self._desk = desk
        self.attempt = facts.attempt
        self.entry = FarEntry(facts)
        self.run = FarRun(desk, facts)

    def __repr__(self) -> str:
        return f"<step {self.entry.id} of job {self.run.job.id} in another process>"

    async def save_checkpoint(self, data: bytes) -> bool:
        """Have it written; tells whether the step is to stop there."""
        self.entry.checkpoint = data
        self.entry.checkpoint_no += 1
        return bool(await ask_desk(self._desk, "save_checkpoint", data))


class FarEntry:
    """The entry of the journal."""

    def __init__(self, facts: Facts) -> None:
        self.id = facts.step_id
        self.checkpoint = facts.checkpoint
        self.checkpoint_no = facts.checkpoint_no


class FarJob:
    """The job."""

    def __init__(self, facts: Facts) -> None:
        self.id = facts.job_id
        self.tenant = facts.tenant
        self.user = facts.user


class FarNode:
    """The worker."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.loop = asyncio.get_running_loop()


class FarRun:
    """The run of the job; a sign of progress goes to the real one."""

    def __init__(self, desk: Pid, facts: Facts) -> None:
        self._desk = desk
        self.job = FarJob(facts)
        self.node = FarNode(facts.limits)

    @property
    def progress_at(self) -> float:
        return self.node.loop.time()

    @progress_at.setter
    def progress_at(self, _: float) -> None:
        send(self._desk, "progress")


def find_step(facts: Facts) -> Step[..., Any]:
    """Find a step by the place of its function in a module.

    Raises:
        Drift: It is not there.
    """
    found = _find(facts)
    if found is None and any(load() for load in MISSING):
        found = _find(facts)
    if isinstance(found, Step):
        return cast("Step[..., Any]", found)
    if is_step_class(found):
        return step_of_object(cast("type[Any]", found)())
    if callable(found):
        return step_of(found)
    raise Drift(
        f"step {facts.step_id} cannot run in another OS process: "
        f"there is no {facts.name} in module {facts.module}"
    )


def _find(facts: Facts) -> object:
    if facts.module not in sys.modules:
        try:
            importlib.import_module(facts.module)
        except ModuleNotFoundError:
            if facts.file is None:
                raise
            import_file(facts.module, facts.file)
    return find_at(facts.module, facts.name)


def find_at(module: str, name: str) -> object:
    """Find what has this name in a module; None if there is nothing."""
    return reduce(_inside, name.split("."), cast("object", sys.modules.get(module)))


def _inside(holder: object, name: str) -> object:
    """Look one name further, but not into a step: the rest of the name is its function's."""
    if isinstance(holder, Step) or is_step_class(holder):
        return cast("object", holder)
    return getattr(holder, name, None)
