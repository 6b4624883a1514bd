"""What processes of tests run: functions of a module, as another OS process needs them."""

import asyncio
import atexit
import ctypes
import logging
import os
import resource
import signal
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from perdure import process
from perdure.otp import GenServer, Task
from perdure.process import Cancel, Message, Pid, sleep
from perdure.process.loop import SpinLoop


class Odd(Exception):
    """Has an `__init__` that takes other arguments than it hands on."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"{number}: {why}")
        self.number = number
        self.why = why


class Explosive:
    """Can be pickled, and not be unpickled."""

    def __reduce__(self) -> Any:
        return explode, ()


def explode() -> None:
    raise RuntimeError("not here")


async def give_explosive() -> Explosive:
    return Explosive()


class Counter(GenServer):
    """Adds what it is called with."""

    async def init(self, first: int = 0) -> None:
        self.count = first

    async def handle_call(self, request: int, frm: object) -> int:
        self.count += request
        return self.count

    async def handle_cast(self, request: int) -> None:
        self.count += request


async def double(number: int) -> int:
    return 2 * number


async def where() -> tuple[int, int]:
    """Say in which OS process and thread it runs."""
    return os.getpid(), asyncio.get_running_loop().__hash__()


async def wait_for_ever() -> None:
    await sleep(3600)


async def echo() -> None:
    """Send back what comes, with one's own pid."""
    async for message in process.inbox():
        assert message.sender is not None
        process.send(message.sender, message.topic, message.payload, process.self_pid())


async def until_listening(to: Pid) -> None:
    """Listen to one topic, and leave the others waiting."""
    end = process.listen("end")
    process.send(to, "ready")
    await end.receive()


async def block_until_written(to: Pid, parent: int, descriptor: int) -> None:
    """Block the loop until the parent OS process writes into a pipe, and then wait."""
    process.send(to, "blocking")
    await sleep("1ms")
    _read_from(Path(f"/proc/{parent}/fd/{descriptor}"))  # in a child as in a thread
    await sleep(3600)


async def write_and_block(parent: int, descriptor: int) -> None:
    """Write into a pipe of the parent OS process, and never wait."""
    _write_to(Path(f"/proc/{parent}/fd/{descriptor}"))
    while True:
        pass


def _write_to(path: Path) -> None:
    path.write_bytes(b"x")


def _read_from(path: Path) -> None:
    with path.open("rb", buffering=0) as pipe:
        pipe.read(1)


async def until_told() -> str:
    """End with the payload of the first message."""
    message = await process.inbox().receive()
    return message.payload


async def until_cancelled() -> str:
    while not isinstance(await process.events().receive(), Cancel):
        pass
    return "cancelled"


async def cancelled_by() -> tuple[Any, Any, bool]:
    """Say who asked for the end, why, and whether there is a limit."""
    event = await process.events().receive()
    assert isinstance(event, Cancel)
    return event.sender, event.reason, event.deadline is not None


async def fail_oddly() -> None:
    raise Odd(7, "it had to be")


async def fail(text: str = "boom") -> None:
    raise ValueError(text)


async def fail_when_told() -> None:
    await process.inbox().receive()
    raise ValueError("told")


async def leave() -> None:
    process.exit()


async def collect(count: int) -> list[Any]:
    return [(await process.inbox().receive()).payload for _ in range(count)]


async def tell_events(to: Pid) -> None:
    """Trap links, and report each event by its class and sender."""
    process.set_options(trap_links=True)
    process.send(to, "ready")
    while True:
        event = await process.events().receive()
        process.send(to, "event", type(event).__name__, event.sender)


async def link_to(pid: Pid, to: Pid) -> None:
    """Link to a process, and tell when that is sure: the link went before the word."""
    process.link(pid)
    process.send(to, "linked", process.self_pid())
    await sleep(3600)


async def monitor_and_tell(pid: Pid, to: Pid) -> None:
    process.monitor(pid)
    process.send(to, "watching")
    event: Any = await process.events().receive()
    process.send(to, "ended", event.sender, type(event.result.error).__name__)


async def relay(to: Pid, count: int) -> None:
    for number in range(count):
        process.send(to, "number", number)
    process.send(to, "done", process.self_pid())


async def take_name(name: str, to: Pid) -> None:
    process.register(name)
    process.send(to, "named", process.whereis(name) is process.self_pid())
    await process.inbox().receive()


async def send_by_name(name: str, value: object) -> bool:
    return process.send(name, "by-name", value)


async def answer_requests() -> None:
    """Answer each request with its body and whether the sender is known."""
    async for request in process.requests():
        request.reply([request.body, request.sender])


async def never_answer() -> None:
    await process.requests().receive()
    await sleep(3600)


async def die_when_asked() -> None:
    await process.requests().receive()
    raise ValueError("asked")


async def call_server(pid: Pid, number: int) -> int:
    return await process.call(pid, number)


async def spawn_here(to: Pid) -> None:
    """Start a process beside oneself, and tell who it is."""
    child = process.spawn(wait_for_ever)
    process.send(to, "child", child)
    await sleep(3600)


async def spawn_on(host: str, number: int) -> int:
    """Start a process on a host from a worker, and give its value."""
    process.spawn_monitored(double, number, host=host)
    event: Any = await process.events().receive()
    if event.result.error is not None:
        raise event.result.error
    return event.result.value


async def see_context() -> dict[str, Any]:
    return dict(process.context())


async def lambda_result() -> Any:
    return lambda: None


async def exit_os_process(status: int) -> None:
    os._exit(status)


async def block() -> None:
    """Never wait."""
    while True:
        pass


async def message_kinds() -> list[Message]:
    return [await process.inbox().receive() for _ in range(3)]


def add(state: int, number: int) -> int:
    return state + number


def same(state: Any) -> Any:
    return state


async def write_garbage() -> None:
    """Write to all sockets of this OS process what nobody understands."""
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, and no files
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                os.write(int(entry), b"garbage" * 100)
    await sleep(3600)


async def fork_and_wait(to: Pid) -> None:
    """Have a child that holds all descriptors of this OS process."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    process.send(to, "forked", child, os.getpid())
    await sleep(3600)


async def block_in_c() -> None:
    """Never wait, and never run Python code again."""
    signal.pause()


async def os_pid(to: Pid) -> None:
    """Tell the id of one's OS process, and wait to be told to end it."""
    process.send(to, "os_pid", os.getpid())
    message = await process.inbox().receive()
    if message.topic == "segfault":
        ctypes.string_at(0)
    if message.topic == "out of memory":
        await exhaust_memory()
    os._exit(7)


async def exhaust_memory() -> None:
    """Take all memory that the OS process may have: nothing is left for what its loop does."""
    _take_all_memory()
    asyncio.get_running_loop().call_soon(bytearray, 1 << 20)  # as much as a read needs
    await process.inbox().receive()


def _take_all_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), resource.RLIM_INFINITY))
    size = 1 << 20
    while size >= 1 << 10:
        try:
            _HOARD.append(bytearray(size))
        except MemoryError:
            size //= 2


_HOARD: list[bytearray] = []


async def want_too_much() -> int:
    """Ask for more memory than the OS process may have."""
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.RLIM_INFINITY))
    return len(bytearray(8 << 30))


async def outgrow(group: str) -> None:
    """Go into a control group, and take more memory than it may have."""
    _enter(Path(group, "cgroup.procs"))
    while True:
        _HOARD.append(bytearray(os.urandom(1 << 20)))  # written to, so that it is really there


def _enter(members: Path) -> None:
    members.write_text(str(os.getpid()), "ascii")


async def spin_time() -> float:
    """Tell how long the loop looks for an answer before it sleeps."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SpinLoop)
    return loop.spin_time


async def segfault() -> None:
    """Read memory that is nobody's."""
    ctypes.string_at(0)


async def kill_own_os_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def write_at_exit(path: str) -> None:
    atexit.register(Path(path).write_text, "orderly")


async def log_a_warning(text: str) -> None:
    logging.getLogger("work").warning("%s happened", text)


async def say_goodbye(to: Pid, count: int) -> None:
    """When asked to end, send many messages, and then end."""
    process.send(to, "ready")
    await process.events().receive()
    for number in range(count):
        process.send(to, "goodbye", number)


async def block_after(to: Pid) -> None:
    """Tell that one is about to block, let it out, and never wait again."""
    process.send(to, "blocking", os.getpid())
    await sleep("1ms")
    await sleep("1ms")
    while True:
        pass


async def ignore_cancel() -> None:
    """Read the events, and go on."""
    while True:
        await process.events().receive()


async def hand_a_name_on(name: str, times: int) -> int:
    """Let one process after another take a name, each when the one before is dead."""
    for _ in range(times):
        process.spawn_monitored(_have_a_name, name)
        event: Any = await process.events().receive()
        if event.result.error is not None:
            raise event.result.error
    return times


async def _have_a_name(name: str) -> None:
    process.register(name)
    await sleep("1ms")


async def spawn_and_send(host: str, count: int) -> list[int]:
    """Start a process on a host, and send it numbers from the first moment on."""
    pid = process.spawn_monitored(collect, count, host=host)
    for number in range(count):
        process.send(pid, "number", number)
        if number % 10 == 0:
            await sleep(0)
    event: Any = await process.events().receive()
    return event.result.value


async def task_on(host: str, number: int) -> int:
    return await Task.create(double, number, host=host)


async def die_with_linked_on(host: str) -> None:
    process.send(process.spawn_linked(fail_when_told, host=host), "fail")
    await sleep(3600)


async def take(value: Any) -> Any:
    return value


async def unpickled_on(host: str) -> str:
    """Start a process whose arguments cannot be unpacked; say how it ended."""
    process.spawn_monitored(take, Explosive(), host=host)
    event: Any = await process.events().receive()
    return str(event.result.error or "not here, nor needed")


async def watch_name(name: str, to: Pid) -> None:
    """Look for a name at each message; monitor who has it, and tell how that ended."""
    process.send(to, "ready")
    while (pid := process.whereis(name)) is None:
        await process.inbox().receive()
    process.monitor(pid)
    process.send(to, "watching")
    event: Any = await process.events().receive()
    process.send(to, "ended", event.sender, event.result.value)


async def free_when_told(to: Pid) -> None:
    """Have a name, and free another when told."""
    process.register("own")
    process.send(to, "named")
    message = await process.inbox().receive()
    process.send(to, "freed", process.unregister(message.payload))
    await sleep(3600)
