"""Ask a worker of the fleet through the store, and wait for its answer.

A watch of the store says that something has changed; a poll is what makes it safe.
"""

import asyncio
import contextlib
from typing import Any, Final

from perdure.base.errors import CommandRefused, StoreError, WorkerNotFound, WorkerSilent
from perdure.base.retry import idle
from perdure.jobs.worker_command import WorkerAnswer, WorkerCommand
from perdure.store.shared import SharedStore
from perdure.store.store import Store

_LOOK_EVERY: Final = 0.5
_AT_MOST_EVERY: Final = 0.02  # a busy store changes all the time


async def ask(
    shared: SharedStore, verbs: Store, command: WorkerCommand, patience: float
) -> dict[str, Any]:
    """Give a command to a worker, and return its answer.

    Args:
        shared: The store, to watch it.
        verbs: The verbs that give the command: there may be an audit in front of them.
        command: The command.
        patience: How many seconds to wait.

    Raises:
        WorkerNotFound: There is no such worker, or it has stopped meanwhile.
        WorkerSilent: It did not answer in time.
        CommandRefused: It refuses; the message says why.
    """
    changed = asyncio.Event()
    async with shared.use() as store:
        unwatch = store.watch(changed.set)
        try:
            await verbs.ask_worker(command, patience)
            async with asyncio.timeout(patience):
                answer = await _answer(store, command, changed)
        except TimeoutError as error:
            if isinstance(error, StoreError):
                raise
            with contextlib.suppress(StoreError):  # it expires anyway
                await store.withdraw_command(command.id)
            raise WorkerSilent(command.owner, command.action.value, patience) from None
        finally:
            unwatch()
    if answer.refused:
        raise CommandRefused(answer.refused)
    return answer.data


async def _answer(store: Store, command: WorkerCommand, changed: asyncio.Event) -> WorkerAnswer:
    while True:
        changed.clear()  # before it looks: what comes meanwhile is noticed
        state = await store.command_state(command.id)
        if state.answer is not None:
            return state.answer
        if not state.is_alive:
            raise WorkerNotFound(command.owner)
        await idle(_LOOK_EVERY, changed)
        await idle(_AT_MOST_EVERY)
