"""Run a scenario again and again, and interrupt one of its processes one step later each time.

A scenario gets a `World`, starts processes in it and gives the pid of its *victim*.
Every value that is sent in a world is different, so that the books can be balanced:
what was sent must have been received once or still lie somewhere.
"""

import asyncio
import contextvars
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from perdure import Settings, process
from perdure.process import Channel, Exit, ExitResult, Pid, after, select, sleep
from perdure.process.runtime import LoopRuntime, run_in
from perdure.testing import VirtualLoop
from tests.support.processes import Interrupt, drain, live_timers

T = TypeVar("T")


class SteppingLoop(VirtualLoop):
    """A virtual loop that does something before one of its turns."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self._turns = 0
        self._at = 0
        self._action: Callable[[], object] = bool

    def before_turn(self, number: int, action: Callable[[], object]) -> None:
        """Do something before a turn; the next one has the number 1."""
        self._at, self._action = self._turns + number, action

    def _run_once(self) -> None:
        self._turns += 1
        if self._turns == self._at:
            self._action()
        super()._run_once()


@dataclass
class World:
    """What a scenario made, sent and received."""

    resumes: bool = False  # whether the victim catches an interrupt and goes on
    in_task: bool = False  # whether the victim works in an asyncio task of its own
    channels: list[Channel[int]] = field(default_factory=list[Channel[int]])
    offered: list[int] = field(default_factory=list[int])  # somebody tried to send it
    sent: list[int] = field(default_factory=list[int])  # its sender was told that it is sent
    got: list[int] = field(default_factory=list[int])
    others: list[Pid] = field(default_factory=list[Pid])
    mortals: list[Pid] = field(default_factory=list[Pid])  # must come to an end by themselves
    numbers: Iterator[int] = field(default_factory=itertools.count)
    _victim: Pid | None = None

    def channel(self, capacity: int = 0) -> Channel[int]:
        self.channels.append(Channel(capacity))
        return self.channels[-1]

    def spawn(self, function: Callable[..., Any], *args: Any) -> Pid:
        """Start a process that nobody interrupts."""
        self.others.append(process.spawn(function, *args))
        return self.others[-1]

    def victim(self, function: Callable[..., Any], *args: Any) -> Pid:
        """Start the process that is interrupted."""

        async def inside() -> None:
            await asyncio.create_task(function(*args))

        if self.in_task:
            self._victim = process.spawn_monitored(inside)
        else:
            self._victim = process.spawn_monitored(function, *args)
        return self._victim

    async def receive(self, count: int, channel: Channel[int]) -> None:
        """Receive so many values."""
        for _ in range(count):
            self.got.append(await self.again(channel.receive))

    async def send(self, count: int, channel: Channel[int]) -> None:
        """Send so many new values."""
        for _ in range(count):
            value = self.offer()
            if await self.once(partial(channel.send, value)):
                self.sent.append(value)

    def offer(self) -> int:
        """Give a value that nobody had before."""
        self.offered.append(next(self.numbers))
        return self.offered[-1]

    async def again(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Do something; if it is interrupted and we go on, do it again."""
        while True:
            try:
                return await operation()
            except asyncio.CancelledError:
                self._take_back()

    async def once(self, operation: Callable[[], Awaitable[object]]) -> bool:
        """Do something that must not be done twice; tell whether it was not interrupted."""
        try:
            await operation()
        except asyncio.CancelledError:
            self._take_back()
            return False
        return True

    def _take_back(self) -> None:
        if not self.resumes or process.self_pid() is not self._victim:
            raise  # noqa: PLE0704 - it is called where the cancellation is handled
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()


Scenario = Callable[[World], Pid]


def interrupt_everywhere(
    scenario: Scenario, interrupt: Interrupt, *, seed: int, in_task: bool, resumes: bool
) -> int:
    """Interrupt at the first step, at the second, … until the scenario ends before; count."""
    for step in itertools.count(1):
        world = World(resumes, in_task)
        loop = SteppingLoop(seed)
        settings = Settings(turn_steps=1, report_crashes=False)
        runtime = LoopRuntime(settings, clock=loop.clock, shuffle=loop.shuffle)
        main = partial(_play, loop, world, scenario, interrupt)
        if not run_in(runtime, main, (step,), lambda loop=loop: loop):
            return step - 1
    raise AssertionError("unreachable")


async def _play(
    loop: SteppingLoop, world: World, scenario: Scenario, interrupt: Interrupt, step: int
) -> bool:
    """Run the scenario once; tell whether its victim lived long enough to be interrupted."""
    hits: list[int] = []
    victim = scenario(world)

    def strike() -> None:
        if process.alive(victim):
            hits.append(step)
            interrupt(victim)

    loop.before_turn(step, partial(contextvars.copy_context().run, strike))
    await sleep("1h")
    result = await _end_of(victim)
    if isinstance(result.error, Exception):  # it failed by itself, and not by the interrupt
        raise result.error
    assert result.ok or hits
    assert not any(process.alive(pid) for pid in world.mortals), "another process hangs"
    await _balance(world, complete=result.ok)
    await _nothing_is_left(world)
    return bool(hits)


async def _end_of(victim: Pid) -> ExitResult:
    event = (await select(process.events(), after("1h"))).value
    assert isinstance(event, Exit), "the victim hangs"
    assert event.sender is victim
    return event.result


async def _balance(world: World, *, complete: bool) -> None:
    received = list(world.got)
    for channel in world.channels:
        received += await drain(channel)
    assert len(received) == len(set(received)), f"received twice: {sorted(received)}"
    assert set(received) <= set(world.offered)
    lost = set(world.sent) - set(received)
    assert not lost, f"lost: {sorted(lost)}"
    if complete and world.resumes:
        assert world.sent, "the victim went on, so it must have come to an end"


async def _nothing_is_left(world: World) -> None:
    for pid in world.others:
        if process.alive(pid):
            process.kill(pid)
    await sleep(1)
    assert [info.pid for info in process.processes()] == [process.self_pid()]
    assert live_timers() == 0
    assert len(asyncio.all_tasks()) == 1  # the one that runs the loop
    for channel in world.channels:
        if not channel.closed:
            await _nobody_waits(channel)


async def _nobody_waits(channel: Channel[int]) -> None:
    """Fill a channel: it must take exactly what it has room for, and give it back."""
    values = [-1 - n for n in range(channel.capacity)]
    for value in values:
        assert not (await select(channel.case_send(value), default=True)).default
    assert (await select(channel.case_send(0), default=True)).default, "a ghost receives"
    assert await drain(channel) == values, "a ghost received or sent"
