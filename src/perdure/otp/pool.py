"""Pool: so many equal workers, kept alive.

A worker that crashes is started again under the same id, after a short delay.
One that ends normally is done, and nobody takes its place.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import TypedDict, Unpack

from perdure.base.duration import Duration
from perdure.base.pid import Pid
from perdure.otp.crew import Crew, Plan, Worker
from perdure.otp.ref import ServerRef, pid_of
from perdure.otp.spec import ChildSpec
from perdure.otp.start import Ack, start
from perdure.otp.stoppable import Stoppable
from perdure.otp.via import Via
from perdure.process.birth import Function
from perdure.process.current import current
from perdure.process.messaging import alive_or_raise
from perdure.process.signal import cancel
from perdure.process.spawner import joined


class PoolOptions(TypedDict, total=False):
    """The options of a pool, see `Pool.start_link`."""

    size: int
    restart_delay: Duration
    health_check: Duration
    max_restarts: int | None
    max_seconds: Duration
    host: str | None
    shutdown: Duration
    report: Callable[[str], object] | None


class Pool(Stoppable):
    """A pool; this is the handle to it.

    Every method may also be called on the class, with the pool's name or pid in place of
    the handle: `Pool.workers("fetchers")`.
    """

    __slots__ = ("pid",)

    def __init__(self, pid: Pid) -> None:
        """Use `start_link` instead, which starts the pool."""
        self.pid = pid

    def __repr__(self) -> str:
        return f"<pool {self.pid}>"

    @classmethod
    async def start_link(
        cls,
        worker: Function | str,
        *,
        name: str | Via | None = None,
        **options: Unpack[PoolOptions],
    ) -> "Pool":
        """Start a pool, linked to this process, and all its workers.

        Args:
            worker: An `async def` function, or the id of a loaded entry.
                It is called with the worker's id, which counts from 1.
            name: The name of the pool's process.
            **options: `size`, the number of workers, 4.
                `restart_delay`, the time between a crash and the new worker, 100 ms.
                `health_check`, the time without any event after which the pool reports, 60 s.
                `max_restarts` within `max_seconds`, the limit beyond which the pool gives up;
                by default there is none.
                `host`, where the workers run.
                `shutdown`, the time that workers get to end with the pool, 5 s.
                `report`, a function that gets a line of text about all that happens.

        Raises:
            NameTaken: Another process has the name.
            ValueError: An option is out of its range.
            TypeError: An option is unknown or has the wrong type.
            SpawnError: The worker is no `async def` function.
        """
        crew = Crew(Plan(worker, **options))
        process, _ = await start(cls, _serve, crew, name=name)
        return cls(process.pid)

    @classmethod
    def child(
        cls,
        worker: Function | str,
        *,
        id: Hashable = None,
        name: str | Via | None = None,
        **options: Unpack[PoolOptions],
    ) -> ChildSpec:
        """Describe a pool as the child of a supervisor."""
        Plan(worker, **options)
        begin = partial(cls.start_link, worker, name=name, **options)
        return ChildSpec(cls if id is name is None else id or name, begin, type="supervisor")

    def workers(self: ServerRef) -> list[Worker]:
        """Give the living workers, in the order of their ids.

        Raises:
            NoProcess: The pool has ended.
            TypeError: It is no pool.
        """
        process = alive_or_raise(pid_of(self, "workers"), "list its workers")
        if process.function is not _serve:
            raise TypeError(f"{self!r} is no pool")
        crew: Crew = process.args[1]
        living = [worker for worker in crew.workers.values() if worker.pid.target is not None]
        return sorted(living, key=lambda worker: worker.id)

    async def stop(self: ServerRef) -> None:
        """End the pool normally, its workers first, and wait until all are gone."""
        process = alive_or_raise(pid_of(self, "stop"), "stop it")
        cancel(process, current("stop").pid, None)
        await joined(process)


async def _serve(ack: Ack, crew: Crew) -> None:
    await crew.run(ack)
