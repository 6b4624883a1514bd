"""Servers and agents that many tests start."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perdure import process
from perdure.otp.agent import Agent
from perdure.otp.server import Ask, GenServer
from perdure.process import Request


@dataclass(frozen=True)
class Add(Ask[int]):
    amount: int


class Counter(GenServer):
    """Counts up by `Add`, and tells its count for anything else."""

    async def init(self, start: int = 0) -> None:
        self.count = start

    async def handle_call(self, request: object, frm: Request[Any]) -> int:
        if isinstance(request, Add):
            self.count += request.amount
        return self.count

    async def handle_cast(self, request: Add) -> None:
        self.count += request.amount


class Diary(GenServer):
    """Writes everything down in the list that it is given, and does what a request says."""

    async def init(self, diary: list[Any], *, trap: bool = False) -> None:
        self.diary = diary
        process.set_options(trap_links=trap)

    def note(self, *entry: Any) -> None:
        self.diary.append(entry)

    async def handle_call(self, request: Any, frm: Request[Any]) -> Any:
        self.note("call", request)
        return request() if callable(request) else request

    async def handle_cast(self, request: Any) -> Any:
        self.note("cast", request)
        return request() if callable(request) else None

    async def handle_info(self, message: Any) -> Any:
        self.note("info", message)

    async def handle_continue(self, value: Any) -> Any:
        self.note("continue", value)
        return value() if callable(value) else None

    async def terminate(self, reason: BaseException | None) -> None:
        self.note("terminate", reason)


class TrappingDiary(Diary):
    async def init(self, diary: list[Any], *, trap: bool = True) -> None:
        await super().init(diary, trap=trap)


async def start_any(init: Callable[[], Any], **options: Any) -> Agent[Any]:
    """Start an agent whose state may be anything."""
    return await Agent.start(init, **options)
