"""Children for tests of supervisors: they write down when they start and end, and obey orders."""

from collections.abc import Callable
from typing import Any

from perdure import process
from perdure.errors import Shutdown
from perdure.otp.supervision.loop import ChildInfo
from perdure.otp.supervision.spec import BRUTAL_KILL, ChildSpec
from perdure.process import Channel, Pid
from tests.support.processes import others_rest


class Family:
    """A diary that all children write, and what makes them."""

    def __init__(self) -> None:
        self.diary: list[str] = []
        self.pids: dict[str, Pid] = {}
        self.failing: dict[str, int] = {}  # how many of the next starts of a child fail

    def __call__(self, id: str, **fields: Any) -> ChildSpec:
        """Give the spec of a child."""
        return ChildSpec(id, self.start(id), **fields)

    def start(self, id: str) -> Callable[[], Any]:
        async def start() -> Pid:
            if self.failing.get(id, 0):
                self.failing[id] -= 1
                self.diary.append(f"!{id}")
                await others_rest()
                raise ValueError(f"{id} does not start")
            self.diary.append(f"+{id}")
            self.pids[id] = process.spawn_linked(self.live, id)
            await others_rest()
            return self.pids[id]

        return start

    async def live(self, id: str) -> None:
        try:
            message = await process.inbox().receive()
            self.diary.append(f"{message.topic} {id}")
            match message.topic:
                case "crash":
                    raise ValueError(id)
                case "shutdown":
                    raise Shutdown(id)
                case _:
                    return
        finally:
            self.diary.append(f"-{id}")

    async def tell(self, id: str, topic: str) -> None:
        """Send to a child and wait for what becomes of it."""
        process.send(self.pids[id], topic)
        await self.rest()

    async def rest(self) -> None:
        """Wait until nobody has anything to do."""
        for _ in range(20):
            await others_rest()

    def entries(self) -> str:
        """Give what was written since the last time."""
        text = " ".join(self.diary)
        self.diary.clear()
        return text

    def alive(self) -> str:
        """Give the ids of the living."""
        return " ".join(sorted(id for id, pid in self.pids.items() if process.alive(pid)))


async def refuse_to_stop() -> None:
    """Trap links, and ignore what comes."""
    process.set_options(trap_links=True)
    await Channel[None]().receive()


def states(children: list[ChildInfo]) -> dict[Any, str]:
    """Give what each child does."""
    return {
        info.id: "running" if isinstance(info.pid, Pid) else info.pid or "none" for info in children
    }


KILLED_AT_ONCE = {"shutdown": BRUTAL_KILL}
