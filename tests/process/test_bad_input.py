"""A mistake gives one clear error, and nothing happens."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure import process
from perdure.errors import NameTaken, NoProcess, NotInProcess, NotRegistered, ProcError, SpawnError
from perdure.testing import simulate, simulated
from tests.support.processes import exit_of, give, living, others_rest, wait_forever, waiting_events

Mistake = Callable[[], object]

MISTAKES = (ProcError, ValueError, TypeError, LookupError)


async def refused(mistake: Mistake, error: type[Exception], text: str) -> None:
    """Make a mistake: it raises this error, and nothing is created, sent or warned about."""
    me = process.self_pid()
    before = (living(), process.info(me).names, process.info(me).links, process.info(me).monitors)
    with warnings.catch_warnings(action="always", record=True) as warned:
        with pytest.raises(error, match=text):
            await _awaited(mistake())
        gc.collect()  # a forgotten coroutine warns when it is deleted
    await others_rest()
    after = (living(), process.info(me).names, process.info(me).links, process.info(me).monitors)
    assert after == before
    assert [str(warning.message) for warning in warned] == []
    assert await waiting_events() == []


async def _awaited(value: Any) -> None:
    if asyncio.iscoroutine(value) or hasattr(value, "__await__"):
        await value


def plain() -> None:
    raise AssertionError("a refused function must not be called")


async def generator() -> AsyncIterator[int]:
    yield 1


async def needs_two(one: int, two: int) -> None:
    raise AssertionError("a refused function must not run")


class Rude:
    def __repr__(self) -> str:
        raise ValueError("no repr")


SPAWNS = [
    process.spawn,
    process.spawn_monitored,
    process.spawn_linked,
    process.spawn_linked_monitored,
]

BAD_FUNCTIONS: list[tuple[Callable[[], Any], str]] = [
    (lambda: plain, "plain is not async: declare it `async def`; or, if it blocks, .*offload"),
    (lambda: lambda: give(1), "lambda.* is not async: declare it `async def`"),
    (lambda: generator, "generator is an async generator, .* has a `yield`"),
    (lambda: give(1), r"write spawn\(give, …\) instead of spawn\(give\(…\)\)"),
    (lambda: int, "int is not async"),
    (lambda: None, "`async def` function: None is not a function"),
    (lambda: 5, "`async def` function: 5 is not a function"),
    (lambda: "app:unknown", "unknown entry 'app:unknown'"),
]


@pytest.mark.parametrize("spawn", SPAWNS)
@pytest.mark.parametrize(("function", "text"), BAD_FUNCTIONS)
def test_only_a_coroutine_function_can_be_spawned(spawn: Any, function: Any, text: str) -> None:
    @simulated
    async def main() -> None:
        await refused(lambda: spawn(function(), name="worker"), SpawnError, text)
        assert process.whereis("worker") is None

    main()


@pytest.mark.parametrize("spawn", SPAWNS)
@pytest.mark.parametrize("args", [(), (1,), (1, 2, 3)])
def test_arguments_that_do_not_fit_are_refused_at_the_call(
    spawn: Any, args: tuple[int, ...]
) -> None:
    @simulated
    async def main() -> None:
        await refused(lambda: spawn(needs_two, *args), SpawnError, "cannot start needs_two with")

    main()


@simulated
async def test_an_argument_whose_repr_raises_does_not_hide_the_mistake() -> None:
    await refused(lambda: process.spawn(needs_two, Rude()), SpawnError, "missing 1 required")


@simulated
async def test_run_process_refuses_what_spawn_refuses() -> None:
    await refused(lambda: process.run_process(plain), SpawnError, "declare it `async def`")
    await refused(lambda: process.run_process(needs_two, 1), SpawnError, "needs_two")


@simulated
async def test_a_taken_name_is_refused_before_anything_is_created() -> None:
    process.spawn(wait_forever, name="worker")
    await refused(lambda: process.spawn(give, name="worker"), NameTaken, "'worker' is taken by {")


BAD_BIRTHS: list[tuple[Mistake, type[Exception], str]] = [
    (lambda: process.spawn(give, host="nowhere"), SpawnError, "unknown host 'nowhere'"),
    (lambda: process.spawn(give, name=""), ValueError, "a name must not be empty"),
    (lambda: process.spawn(give, name=bad(5)), TypeError, "a name is text, not 5"),
    (lambda: process.spawn(give, context=bad(5)), TypeError, "mapping"),
]


def bad(value: object) -> Any:
    """Pass a value that a type checker would refuse."""
    return value


@pytest.mark.parametrize(("mistake", "error", "text"), BAD_BIRTHS)
def test_a_bad_option_of_birth_is_refused(
    mistake: Mistake, error: type[Exception], text: str
) -> None:
    @simulated
    async def main() -> None:
        await refused(mistake, error, text)

    main()


# Names, topics, destinations


BAD_WORDS: list[tuple[Mistake, type[Exception], str]] = [
    (lambda: process.register(""), ValueError, "a name must not be empty"),
    (lambda: process.register(bad(5)), TypeError, "a name is text, not 5"),
    (lambda: process.unregister(""), ValueError, "a name must not be empty"),
    (lambda: process.whereis(""), ValueError, "a name must not be empty"),
    (lambda: process.pid_of("nobody"), NotRegistered, "'nobody'"),
    (lambda: process.send("nobody", "topic"), NotRegistered, "'nobody'"),
    (lambda: process.send(process.self_pid(), "@exit"), ValueError, "begin with '@'"),
    (lambda: process.send(process.self_pid(), ""), ValueError, "must not be empty"),
    (lambda: process.send(process.self_pid(), bad(5)), TypeError, "a topic is text, not 5"),
    (lambda: process.send(bad(5), "topic"), TypeError, "a Pid or a registered name, not 5"),
    (lambda: process.send(bad(None), "topic"), TypeError, "a Pid or a registered name, not None"),
    (lambda: process.listen("@cancel"), ValueError, "begin with '@'"),
    (lambda: process.listen(""), ValueError, "must not be empty"),
    (lambda: process.unlisten(perdure.process.Channel()), ProcError, r"got from listen\(\)"),
    (lambda: process.monitor("nobody"), NotRegistered, "'nobody'"),
    (lambda: process.link("nobody"), NotRegistered, "'nobody'"),
    (lambda: process.cancel("nobody"), NotRegistered, "'nobody'"),
    (lambda: process.kill("nobody"), NotRegistered, "'nobody'"),
    (lambda: process.unmonitor("nobody"), NotRegistered, "'nobody'"),
    (lambda: process.info(bad(5)), TypeError, "a Pid or a registered name, not 5"),
    (lambda: process.alive(bad(5)), TypeError, "5"),
]


@pytest.mark.parametrize(("mistake", "error", "text"), BAD_WORDS, ids=range(len(BAD_WORDS)))
def test_a_bad_name_topic_or_destination_is_refused(
    mistake: Mistake, error: type[Exception], text: str
) -> None:
    @simulated
    async def main() -> None:
        await refused(mistake, error, text)
        assert process.info(process.self_pid()).mailbox == 0

    main()


# The dead


NEEDS_A_LIVING_ONE: list[tuple[Callable[[process.Pid], object], str]] = [
    (process.link, "cannot link to it"),
    (process.cancel, "cannot cancel it"),
    (process.kill, "cannot kill it"),
    (process.info, "cannot look at it"),
    (lambda pid: process.register("worker", pid), "cannot register"),
    (lambda pid: process.exit(ValueError(), pid), "cannot signal it"),
]


@pytest.mark.parametrize(("verb", "text"), NEEDS_A_LIVING_ONE)
def test_a_verb_that_needs_a_living_process_refuses_a_dead_one(
    verb: Callable[[process.Pid], object], text: str
) -> None:
    @simulated
    async def main() -> None:
        pid = process.spawn_monitored(give)
        await exit_of(pid)
        await refused(lambda: verb(pid), NoProcess, f"{pid.number}}} is not alive; {text}")

    main()


# Time


BAD_NUMBERS = [-1, -0.5, float("nan"), float("inf"), True]
BAD_TEXTS = ["-1s", "5", "abc", "", "5 s", "1d"]
BAD_DURATIONS = [*BAD_NUMBERS, *BAD_TEXTS, timedelta(seconds=-1), [1]]

TIMED: list[Callable[[Any], object]] = [
    lambda duration: process.cancel(process.self_pid(), duration),
    perdure.process.sleep,
    perdure.process.after,
    perdure.process.timer,
    perdure.process.ticker,
]
TIMED_NAMES = ["cancel", "sleep", "after", "timer", "ticker"]


@pytest.mark.parametrize("verb", TIMED, ids=TIMED_NAMES)
@pytest.mark.parametrize("duration", BAD_DURATIONS, ids=repr)
def test_a_bad_duration_is_refused_and_nothing_is_armed(
    verb: Callable[[Any], object], duration: object
) -> None:
    @simulated
    async def main() -> None:
        with pytest.raises(
            (ValueError, TypeError), match=r"use a number of seconds|positive duration"
        ):
            await _awaited(verb(duration))
        await others_rest()
        assert await waiting_events() == []

    main()


@pytest.mark.parametrize("verb", [perdure.process.timer, perdure.process.ticker])
def test_a_timer_of_no_time_is_refused(verb: Callable[[Any], object]) -> None:
    @simulated
    async def main() -> None:
        with pytest.raises(ValueError, match="needs a positive duration"):
            verb(0)

    main()


@pytest.mark.parametrize("verb", TIMED[1:], ids=TIMED_NAMES[1:])
def test_a_wait_without_a_limit_is_no_duration(verb: Callable[[Any], object]) -> None:
    @simulated
    async def main() -> None:
        with pytest.raises(TypeError, match="a limit is needed here"):
            await _awaited(verb(None))

    main()


# Outside of a runtime


OUTSIDE: dict[str, Mistake] = {
    "spawn": lambda: process.spawn(give),
    "spawn_linked": lambda: process.spawn_linked(give),
    "run_process": lambda: process.run_process(give),
    "self_pid": process.self_pid,
    "context": process.context,
    "processes": process.processes,
    "inbox": process.inbox,
    "events": process.events,
    "listen": lambda: process.listen("topic"),
    "send": lambda: process.send("name", "topic"),
    "register": lambda: process.register("name"),
    "unregister": lambda: process.unregister("name"),
    "whereis": lambda: process.whereis("name"),
    "pid_of": lambda: process.pid_of("name"),
    "monitor": lambda: process.monitor("name"),
    "link": lambda: process.link("name"),
    "set_options": lambda: process.set_options(trap_links=True),
    "get_options": process.get_options,
    "exit": process.exit,
    "upgrade": lambda: process.upgrade(give),
    "call": lambda: process.call("name", "request"),
}


@pytest.mark.parametrize("verb", OUTSIDE)
async def test_a_verb_outside_of_a_runtime_says_how_to_start_one(verb: str) -> None:
    with pytest.raises(
        NotInProcess, match=r"works only inside a process: .*`perdure\.run\(main\)`"
    ):
        await _awaited(OUTSIDE[verb]())


@pytest.mark.parametrize("verb", ["spawn", "self_pid", "inbox", "exit"])
def test_a_verb_without_any_loop_says_how_to_start_one(verb: str) -> None:
    with pytest.raises(NotInProcess, match=r"perdure\.run\(main\)"):
        OUTSIDE[verb]()


def test_a_pid_from_outside_of_a_runtime_is_dead_and_takes_no_message() -> None:
    async def main() -> process.Pid:
        return process.self_pid()

    pid = simulate(main)
    assert not process.alive(pid)
    assert process.send(pid, "topic") is False


# All mistakes are of the kinds that api.md names


def test_every_error_of_a_mistake_is_an_ordinary_exception() -> None:
    kinds: Iterator[type[Exception]] = (error for _, error, _ in [*BAD_BIRTHS, *BAD_WORDS])
    assert all(issubclass(kind, MISTAKES) for kind in kinds)
