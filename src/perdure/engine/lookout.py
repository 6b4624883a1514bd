"""The lookout: tells people of jobs without progress, which nobody else will start again."""

import logging
from weakref import WeakSet

from perdure.base.errors import LeaseLost, StoreError
from perdure.base.retry import pause
from perdure.engine import tell
from perdure.engine.node import Node
from perdure.engine.parking import alerts
from perdure.engine.run import Run
from perdure.jobs.deeds import Deeds
from perdure.jobs.model import Event, Write
from perdure.jobs.outbox import NoticeKind

_log = logging.getLogger("perdure.worker")


async def look_out(node: Node) -> None:
    """Look for stuck jobs again and again, for ever."""
    told = WeakSet[Run]()
    while True:
        stuck = [run for run in node.runs.values() if run.is_ours() and not node.gets_on(run)]
        for run in stuck:
            if run not in told and await _tell(node, run):
                told.add(run)
        await pause(node.settings.beat)


async def _tell(node: Node, run: Run) -> bool:
    """Write it into the job's log, and alert people: once, whichever worker has it.

    Returns:
        False: the store does not answer, so it must be tried again.
    """
    text = (
        f"{_what(run)} has shown no progress for {node.settings.stuck_after:g} seconds. "
        "It still runs, and is not started again. If it is only slow, let it call ctx.progress() "
        "now and then, or give it a timeout=. If it hangs, cancel the job; with a timeout=, and "
        'isolation="process" if it does not await, such a step ends by itself'
    )
    _log.warning("job %s is stuck: %s", run.job.id, text)
    # Not by `run.write`: that would be taken for progress.
    stuck = Write(
        job_id=run.job.id,
        owner=node.owner,
        epoch=run.epoch,
        events=(Event(type="job.stuck", data={"why": text}, actor=node.owner),),
        deeds=Deeds(notices=alerts(run, NoticeKind.STUCK, "no progress", text)),
    )
    try:
        await node.store.write(stuck)
    except StoreError as error:
        _log.warning("telling of a stuck job: %s", error)
        return False
    except LeaseLost:
        return True  # whoever has the job now looks out for it
    node.told.set()
    tell.stuck(run, text)
    return True


def _what(run: Run) -> str:
    steps = sorted(operation.entry.id for operation in run.working)
    return ", ".join(steps) if steps else "its code"
