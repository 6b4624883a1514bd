"""The agenda: one query says when schedules, approval timers and notices are due next.

It also says whether somebody asks something of this worker: see `commands`.
Each of these duties runs when the agenda wakes it, and not by a poll of its own. The agenda itself
is read at the next time that it knows, after a change of the store, and at each poll, because a
hint about a change may be lost. So an idle worker asks once per poll for all of its duties.
"""

import asyncio
from functools import partial
from typing import Final

from perdure.base.retry import idle
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.periodic import every

# A busy store changes all the time, and none of this is so urgent.
_AT_MOST_EVERY: Final = 1.0


async def keep_agenda(node: WorkerNode) -> None:
    """Wake the duties of a worker when they are due; runs for ever."""
    changed = asyncio.Event()
    unwatch = node.store.watch(changed.set)
    try:
        await every(
            node.settings.poll, partial(_wake_due, node), what="reading due times", wake=changed
        )
    finally:
        unwatch()


async def _wake_due(node: WorkerNode) -> float:
    """Wake what is due, and return in how many seconds the next duty is."""
    channels = [channel.name for channel in node.policy.all_channels]
    found = await node.store.agenda(channels, node.owner)
    if found.is_commanded:
        node.commanded.set()
    duties = (
        (found.schedules_in, node.schedules_due),
        (found.approvals_in, node.approvals_due),
        (found.notices_in, node.notices_due),
    )
    for due_in, duty in duties:
        if due_in is not None and due_in <= 0:
            duty.set()
    rest = min(_AT_MOST_EVERY, node.settings.poll)
    await idle(rest)
    times = [due_in - rest for due_in, _ in duties if due_in is not None]
    return max(0.0, min((node.settings.poll, *times)))
