"""Whether the code of a job stands still: it waits for operations of its own, and for nothing else.

Only then is it certain that nothing more comes from it before one of them is over.
"""

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from perdure.engine.operation import Operation

if TYPE_CHECKING:
    from perdure.process.process import Process


def stands_still(process: "Process", awaited: Collection[Operation[Any]]) -> bool:
    """Tell whether the code, with all asyncio tasks that it started, waits in operations.

    Code that stands in an `asyncio.gather` of such tasks does; what else it may wait for
    cannot be seen from here, and so does not count.
    """
    stands = any(operation.awaited_by(process) for operation in awaited)
    tasks = None if process.bonds is None else process.bonds.tasks
    if not tasks:
        return stands
    in_operations = sum(operation.waiters for operation in awaited) - stands
    return (stands or _is_of_tasks(process.future)) and in_operations >= len(tasks)


def _is_of_tasks(future: "asyncio.Future[Any] | None") -> bool:
    """Tell whether a future is a task, or what `asyncio.gather` gives."""
    return isinstance(future, asyncio.Task) or hasattr(future, "_children")
