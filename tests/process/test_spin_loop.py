"""The loop that looks for a moment before it sleeps."""

import asyncio
import selectors
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

import perdure
from perdure.process.loop import SpinBackoff, SpinLoop, SpinSelector, new_loop


class Connection:
    """Two ends of a connection, and a clock by which something comes at its fifth tick."""

    def __init__(self) -> None:
        self.here, self.there = socket.socketpair()
        self.ticks = 0  # as often as the time was asked for

    def now(self) -> float:
        self.ticks += 1
        if self.ticks == 5:
            self.send()
        return float(self.ticks)

    def send(self) -> None:
        self.there.send(b"!")

    def receive(self) -> None:
        self.here.recv(1)


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection()
    with made.here, made.there:
        yield made


@pytest.fixture
def selector(connection: Connection) -> Iterator[SpinSelector]:
    with SpinSelector(connection.now) as made:
        made.register(connection.here, selectors.EVENT_READ)
        made.spin_time = 10.0  # ticks
        yield made


def test_what_comes_while_it_looks_is_given(selector: SpinSelector, connection: Connection) -> None:
    selector.expect()
    [(key, _)] = selector.select(20.0)
    assert key.fileobj is connection.here
    assert connection.ticks == 5


def test_what_comes_is_also_given_to_one_who_waits_without_limit(
    selector: SpinSelector, connection: Connection
) -> None:
    selector.expect()
    [(key, _)] = selector.select()
    assert key.fileobj is connection.here


def test_it_looks_only_if_something_is_expected(
    selector: SpinSelector, connection: Connection
) -> None:
    connection.send()
    assert selector.select(20.0)
    assert connection.ticks == 0


def test_an_expectation_holds_for_one_wait(selector: SpinSelector, connection: Connection) -> None:
    selector.expect()
    selector.select(20.0)
    selector.select(20.0)
    assert connection.ticks == 5


def test_a_poll_does_not_use_up_the_expectation(
    selector: SpinSelector, connection: Connection
) -> None:
    selector.expect()
    assert selector.select(0) == []
    assert connection.ticks == 0
    assert selector.select(20.0)


def test_a_wait_that_is_shorter_than_a_look_is_a_sleep(
    selector: SpinSelector, connection: Connection
) -> None:
    selector.expect()
    assert selector.select(0.001) == []
    assert connection.ticks == 0


def test_after_a_look_in_vain_it_sleeps_until_something_comes(
    selector: SpinSelector, connection: Connection
) -> None:
    selector.spin_time = 0.5  # it is over at the first tick
    selector.expect()
    connection.send()
    assert selector.select(20.0)
    assert connection.ticks == 2


def test_after_a_look_in_vain_the_next_is_left_out(
    selector: SpinSelector, connection: Connection
) -> None:
    selector.spin_time = 0.5
    connection.send()
    for _ in range(2):
        selector.expect()
        assert selector.select(20.0)
    assert connection.ticks == 2


def test_no_time_to_look_means_no_look(selector: SpinSelector, connection: Connection) -> None:
    selector.spin_time = 0.0
    connection.send()
    selector.expect()
    assert selector.select(20.0)
    assert selector.select()
    assert connection.ticks == 0


def test_looks_in_vain_become_ever_rarer() -> None:
    backoff, skipped = SpinBackoff(), list[int]()
    for _ in range(9):
        backoff.failed()
        skips = 0
        while not backoff.should_spin():
            skips += 1
        skipped.append(skips)
    assert skipped == [1, 2, 4, 8, 16, 32, 64, 64, 64]


def test_one_success_brings_all_hope_back() -> None:
    backoff = SpinBackoff()
    for _ in range(5):
        backoff.failed()
    while not backoff.should_spin():
        pass
    backoff.succeeded()
    backoff.failed()
    assert [backoff.should_spin(), backoff.should_spin()] == [False, True]


async def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_run_makes_an_eager_loop() -> None:
    assert type(perdure.run(_loop)) is SpinLoop


def test_run_takes_the_loop_that_it_is_given() -> None:
    loop = perdure.run(_loop, loop_factory=asyncio.SelectorEventLoop)
    assert type(loop) is asyncio.SelectorEventLoop


class _Own(asyncio.SelectorEventLoop):
    """A loop that a program has chosen for itself."""


def test_the_loop_of_a_programs_policy_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "new_event_loop", _Own)
    with closing(new_loop()) as loop:
        assert type(loop) is _Own
