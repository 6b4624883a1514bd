"""What type checkers know of GenServer and Agent; checked by them, never run."""

from dataclasses import dataclass
from typing import Any, assert_type

from perdure.otp.agent import Agent
from perdure.otp.server import Ask, GenServer, Reply, ServerHandle
from perdure.otp.snapshot import Snapshot
from perdure.process import Pid, Request


@dataclass(frozen=True)
class GetCount(Ask[int]):
    """Asks for a number."""


@dataclass(frozen=True)
class Names(Ask[list[str]]):
    """Asks for texts."""

    prefix: str


class Counter(GenServer):
    async def init(self, start: int = 0) -> None:
        self.count = start

    async def handle_call(self, request: GetCount | Names, frm: Request[Any]) -> Any:
        match request:
            case GetCount():
                return self.count
            case Names(prefix):
                return Reply([prefix])


async def answers_are_known_by_their_requests(pid: Pid) -> None:
    counter = await Counter.start_link(1, name="counter", timeout="5s")
    assert_type(counter, ServerHandle)
    assert_type(await GenServer.call(counter, GetCount()), int)
    assert_type(await GenServer.call(pid, Names("a")), list[str])
    assert_type(await GenServer.call("counter", GetCount(), timeout="1s"), int)
    assert_type(await counter.call(GetCount()), int)
    assert_type(await GenServer.call(counter, "plain"), Any)
    assert_type(await Counter.call(counter, GetCount()), int)
    assert_type(GenServer.cast(counter, "plain"), None)
    async with await Counter.start() as other:
        assert_type(other, ServerHandle)


async def load() -> dict[str, int]:
    return {}


async def agents_know_their_state() -> None:
    number = await Agent.start_link(lambda: 1)
    assert_type(number, Agent[int])
    assert_type(await number.get(lambda state: str(state)), str)  # noqa: PLW0108
    assert_type(await number.update(lambda state: state + 1), None)
    assert_type(await number.get_and_update(lambda state: ("x", state)), str)
    assert_type(await number.get(pow, 2), Any)

    table = await Agent.start(load, name="table", on_stop=print)
    assert_type(table, Agent[dict[str, int]])
    assert_type(await table.get(lambda state: state["a"]), int)
    typed: Agent[dict[str, int]] = await Agent.start_link(dict)
    assert_type(await typed.get(len), int)

    saved = await Agent.start(dict[str, int], snapshot=Snapshot("a.json", kind=dict[str, int]))
    assert_type(saved, Agent[dict[str, int]])


async def later(state: int, by: int) -> float:
    return state / by


async def arguments_and_async_functions_are_checked(agent: Agent[int]) -> None:
    assert_type(await agent.get(later, 2), float)


async def by_name_nothing_is_known(pid: Pid) -> None:
    assert_type(await Agent.get("kv", lambda state: state), Any)
    assert_type(await Agent.update(pid, lambda state: state), None)
