"""The application: a root tree that starts and stops in order."""

import os
import signal
from typing import Any

import pytest

import perdure
from perdure import process
from perdure.errors import ProcError, Shutdown, StartError
from perdure.otp.application import Application
from perdure.otp.supervision.spec import child
from perdure.otp.supervision.supervisor import Supervisor
from perdure.process import Pid, sleep
from perdure.testing import simulate, simulated
from tests.support.children import Family
from tests.support.processes import living, now, wait_forever


class App(Application):
    def __init__(self, family: Family, **options: Any) -> None:
        self.family = family
        self.options = options

    async def start(self) -> Supervisor:
        children = [self.family("a"), self.family("b")]
        return await Supervisor.start_link(children, name="App.Root", **self.options)

    async def prep_stop(self) -> None:
        self.family.diary.append("prep_stop")

    async def stop(self) -> None:
        self.family.diary.append("stop")


@simulated
async def test_it_starts_its_tree_and_stops_it_in_order() -> None:
    family = Family()
    before = living()
    async with App(family) as app:
        assert isinstance(app, App)
        assert process.whereis("App.Root") is not None
        assert family.entries() == "+a +b"
    assert family.entries() == "prep_stop -b -a stop"
    assert living() == before


@simulated
async def test_applications_stop_in_the_reverse_order_of_their_start() -> None:
    log: list[str] = []

    class Small(Application):
        def __init__(self, name: str) -> None:
            self.name = name

        async def start(self) -> Supervisor:
            return await Supervisor.start_link([], name=self.name)

        async def stop(self) -> None:
            log.append(self.name)

    async with Small("one"), Small("two"):
        pass
    assert log == ["two", "one"]


@simulated
async def test_the_tree_has_all_the_time_that_it_needs_to_stop() -> None:
    async def slow() -> None:
        process.set_options(trap_links=True)
        await process.events().receive()
        await sleep("1h")

    class Slow(Application):
        async def start(self) -> Supervisor:
            return await Supervisor.start_link([child(slow, shutdown=None)])

    async with Slow():
        await sleep(1)
    assert now() == 3601


@simulated
async def test_an_error_in_the_body_stops_the_tree_and_goes_on() -> None:
    family = Family()
    with pytest.raises(ValueError, match="body"):
        async with App(family):
            raise ValueError("body")
    assert family.entries() == "+a +b prep_stop -b -a stop"


@simulated
async def test_an_error_in_prep_stop_still_stops_the_tree() -> None:
    family = Family()

    class Careless(App):
        async def prep_stop(self) -> None:
            raise ValueError("prep")

    with pytest.raises(ValueError, match="prep"):
        async with Careless(family):
            pass
    assert family.entries() == "+a +b -b -a stop"


@simulated
async def test_a_start_that_fails_is_raised_and_leaves_nothing() -> None:
    family = Family()
    family.failing["b"] = 1
    before = living()
    with pytest.raises(StartError):
        async with App(family):
            raise AssertionError("the body must not run")
    assert family.entries() == "+a !b -a"
    assert living() == before


# The end of the root by itself


@simulated
async def test_wait_gives_the_reason_of_a_root_that_gave_up() -> None:
    family = Family()
    async with App(family, max_restarts=0) as app:
        await family.tell("a", "crash")
        reason = await app.wait()
        assert isinstance(reason, Shutdown)
    assert family.entries() == "+a +b crash a -a -b stop"


@simulated
async def test_wait_waits_for_the_end() -> None:
    family = Family()

    async def later() -> None:
        await sleep(5)
        process.send(family.pids["a"], "crash")

    async with App(family, max_restarts=0) as app:
        process.spawn(later)
        await app.wait()
        assert now() == pytest.approx(5, abs=0.1)


@simulated
async def test_a_root_that_was_stopped_ended_normally() -> None:
    async with App(Family()) as app:
        await Supervisor.stop("App.Root")
        assert await app.wait() is None


@simulated
async def test_a_crash_of_a_child_restarts_only_that_child() -> None:
    family = Family()
    async with App(family):
        family.entries()
        await family.tell("a", "crash")
        assert family.entries() == "crash a -a +a"


# Mistakes


@simulated
async def test_an_application_without_a_start_says_so() -> None:
    with pytest.raises(NotImplementedError, match="async def start"):
        async with Application():
            pass


@simulated
async def test_an_application_that_does_not_run_cannot_be_waited_for() -> None:
    with pytest.raises(ProcError, match="does not run"):
        await App(Family()).wait()


@simulated
async def test_an_application_runs_only_once_at_a_time_but_again() -> None:
    app = App(Family())
    async with app:
        with pytest.raises(ProcError, match="runs already"):
            await app.__aenter__()
    async with app:
        assert process.whereis("App.Root") is not None


@simulated
async def test_a_root_that_is_dead_already_is_refused() -> None:
    class Hasty(Application):
        async def start(self) -> Pid:
            sup = await Supervisor.start_link([])
            await sup.stop()
            return sup.pid

    with pytest.raises(StartError):
        async with Hasty():
            pass


# The end of the owner


@simulated
async def test_the_tree_stops_in_order_when_the_owner_is_killed() -> None:
    family = Family()

    async def owner() -> None:
        async with App(family):
            await wait_forever()

    pid = process.spawn(owner)
    await family.rest()
    process.kill(pid)
    await family.rest()
    assert "-b -a" in family.entries()
    assert len(living()) == 1


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_stops_the_program_in_order(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    family = Family()

    class Signalled(App):
        async def start(self) -> Supervisor:
            root = await super().start()
            process.spawn(send_signal, number)
            return root

    with pytest.raises(raised):
        Signalled(family).run()
    assert family.entries() == "+a +b prep_stop -b -a stop"


async def send_signal(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_run_raises_the_reason_of_the_root() -> None:
    family = Family()

    class Crashing(App):
        async def start(self) -> Supervisor:
            root = await super().start()
            process.send(family.pids["a"], "crash")
            return root

    with pytest.raises(perdure.errors.Shutdown):
        Crashing(family, max_restarts=0).run()
    assert family.entries().endswith("stop")


def test_a_program_that_forgets_to_leave_is_stopped_by_the_runtime() -> None:
    family = Family()

    async def main() -> None:
        await App(family).__aenter__()

    simulate(main)
    assert family.entries() == "+a +b -b -a"
