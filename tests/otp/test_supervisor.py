"""The supervisor: order of start and stop, strategies, intensity, restarts that fail."""

from typing import Any

import pytest

from perdure import Settings, process
from perdure.errors import NameTaken, Shutdown, StartError
from perdure.otp.start import Ack
from perdure.otp.start import start as handshake
from perdure.otp.supervision.spec import IGNORE, ChildSpec, child
from perdure.otp.supervision.supervisor import Supervisor
from perdure.process import Exit, Pid, sleep
from perdure.process.process import current
from perdure.testing import simulate, simulated
from tests.support.children import Family, states
from tests.support.processes import crash, give, living, now, wait_forever

# Start


@simulated
async def test_children_start_in_order_and_stop_in_reverse_order() -> None:
    family = Family()
    async with Supervisor([family("a"), family("b"), family("c")]):
        assert family.entries() == "+a +b +c"
    assert family.entries() == "-c -b -a"


@simulated
async def test_each_child_is_ready_before_the_next_one_begins() -> None:
    order: list[str] = []

    async def slow() -> Pid:
        order.append("slow begins")
        await sleep(3)
        order.append("slow is ready")
        return process.spawn_linked(wait_forever)

    async def quick() -> Pid:
        order.append("quick begins")
        return process.spawn_linked(wait_forever)

    async with Supervisor([ChildSpec("slow", slow), ChildSpec("quick", quick)]):
        assert order == ["slow begins", "slow is ready", "quick begins"]


@simulated
async def test_a_child_that_does_not_start_stops_those_before_it_in_reverse_order() -> None:
    family = Family()
    family.failing["c"] = 1
    before = living()
    with pytest.raises(StartError) as failure:
        await Supervisor.start_link([family("a"), family("b"), family("c"), family("d")])
    assert failure.value.child == "c"
    assert isinstance(failure.value.reason, ValueError)
    assert family.entries() == "+a +b !c -b -a"
    assert living() == before


@simulated
async def test_the_failing_grandchild_is_told_as_the_reason() -> None:
    family = Family()
    family.failing["inner"] = 1
    with pytest.raises(StartError) as failure:
        await Supervisor.start_link([Supervisor.child([family("inner")], id="outer")])
    assert failure.value.child == "outer"
    assert isinstance(failure.value.reason, ValueError)


@simulated
async def test_a_name_that_is_taken_starts_nothing() -> None:
    family = Family()
    async with Supervisor([], name="App") as first:
        with pytest.raises(NameTaken) as taken:
            await Supervisor.start_link([family("a")], name="App")
        assert taken.value.pid is first.pid
    assert family.entries() == ""


@simulated
async def test_a_child_that_ignores_its_start_keeps_its_place() -> None:
    async def nothing() -> Any:
        return IGNORE

    async with Supervisor([ChildSpec("n", nothing), ChildSpec("t", nothing, "temporary")]) as sup:
        assert states(await sup.which_children()) == {"n": "none"}


@pytest.mark.parametrize("wrong", [None, 42, "pid", pytest.param(object(), id="object")])
def test_a_start_function_that_gives_no_process_fails(wrong: object) -> None:
    async def main() -> None:
        async def start() -> Any:
            return wrong

        with pytest.raises(StartError, match="instead of a pid, a handle or IGNORE"):
            await Supervisor.start_link([ChildSpec("w", start)])

    simulate(main)


@simulated
async def test_a_handle_is_as_good_as_a_pid() -> None:
    inner = Supervisor.child([child(wait_forever)], id="inner")
    async with Supervisor([inner]) as sup:
        assert states(await sup.which_children()) == {"inner": "running"}


# Which ends restart


@pytest.mark.parametrize(
    ("restart", "order", "expected"),
    [
        ("permanent", "crash", "running"),
        ("permanent", "return", "running"),
        ("permanent", "shutdown", "running"),
        ("transient", "crash", "running"),
        ("transient", "return", "none"),
        ("transient", "shutdown", "none"),
        ("temporary", "crash", None),
        ("temporary", "return", None),
        ("temporary", "shutdown", None),
    ],
)
def test_the_restart_rule_decides(restart: str, order: str, expected: str | None) -> None:
    async def main() -> None:
        family = Family()
        async with Supervisor([family("w", restart=restart)]) as sup:
            first = family.pids["w"]
            await family.tell("w", order)
            assert states(await sup.which_children()).get("w") == expected
            assert (family.pids["w"] is not first) == (expected == "running")

    simulate(main)


@simulated
async def test_a_killed_child_is_restarted() -> None:
    family = Family()
    async with Supervisor([family("w", restart="transient")]):
        process.kill(family.pids["w"])
        await family.rest()
        assert family.entries() == "+w -w +w"


@simulated
async def test_a_child_that_ends_before_its_start_returns_is_not_lost() -> None:
    starts: list[int] = []

    async def start() -> Pid:
        starts.append(1)
        pid = process.spawn_linked(give if len(starts) > 1 else crash)
        await sleep(1)
        return pid

    async with Supervisor([ChildSpec("w", start, "transient")]) as sup:
        await sleep(5)
        assert states(await sup.which_children()) == {"w": "none"}  # the second ended normally
    assert len(starts) == 2


def test_a_child_that_fails_before_its_busy_supervisor_sees_it_ready_is_restarted() -> None:
    starts: list[int] = []

    async def body(ack: Ack) -> None:
        starts.append(1)
        ack.ready(current())
        if len(starts) == 1:
            raise ValueError("at once")
        await wait_forever()

    async def start() -> Pid:
        return (await handshake("w", body))[0].pid

    async def spin() -> None:
        for _ in range(300):
            for _ in range(20):
                process.spawn(give)
            await sleep(0)

    async def main() -> None:
        process.spawn(spin)
        async with Supervisor([ChildSpec("w", start, "transient")]) as sup:
            await sleep(1)
            assert states(await sup.which_children()) == {"w": "running"}
        assert len(starts) == 2

    # One step a turn, and a crowd before it in the queue: the task of the start ends first.
    simulate(main, settings=Settings(turn_steps=1))


@simulated
async def test_the_new_child_finds_the_name_of_the_old_one_free() -> None:
    async with Supervisor([child(wait_forever, name="w")]):
        first = process.pid_of("w")
        process.kill(first)
        await sleep(1)
        assert process.pid_of("w") is not first


# Strategies


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("one_for_one", "crash b -b +b"),
        ("one_for_all", "crash b -b -d -c -a +a +b +c +d"),
        ("rest_for_one", "crash b -b -d -c +b +c +d"),
    ],
)
def test_the_strategy_decides_who_is_restarted(strategy: Any, expected: str) -> None:
    async def main() -> None:
        family = Family()
        async with Supervisor([family(id) for id in "abcd"], strategy=strategy):
            family.entries()
            await family.tell("b", "crash")
            assert family.entries() == expected
            assert family.alive() == "a b c d"

    simulate(main)


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
def test_an_end_that_restarts_nothing_touches_nobody(strategy: Any) -> None:
    async def main() -> None:
        family = Family()
        children = [family("a", restart="temporary"), family("b", restart="transient"), family("c")]
        async with Supervisor(children, strategy=strategy):
            family.entries()
            await family.tell("a", "crash")
            await family.tell("b", "return")
            assert family.entries() == "crash a -a return b -b"

    simulate(main)


@simulated
async def test_a_temporary_child_that_is_stopped_with_others_does_not_come_back() -> None:
    family = Family()
    children = [family("a"), family("t", restart="temporary"), family("b")]
    async with Supervisor(children, strategy="one_for_all") as sup:
        family.entries()
        await family.tell("a", "crash")
        assert family.entries() == "crash a -a -b -t +a +b"
        assert set(states(await sup.which_children())) == {"a", "b"}


@simulated
async def test_a_crash_during_the_restart_of_the_group_is_dealt_with_afterwards() -> None:
    family = Family()
    async with Supervisor([family("a"), family("b")], strategy="one_for_all"):
        process.send(family.pids["a"], "crash")
        process.send(family.pids["b"], "crash")
        await family.rest()
        assert family.alive() == "a b"
        assert family.entries().endswith("+a +b")


# Intensity


@pytest.mark.parametrize(("allowed", "crashes"), [(0, 1), (1, 2), (3, 4)])
def test_one_restart_too_many_ends_the_supervisor(allowed: int, crashes: int) -> None:
    async def main() -> None:
        process.set_options(trap_links=True)
        family = Family()
        sup = await Supervisor.start_link([family("a"), family("b")], max_restarts=allowed)
        ref = process.monitor(sup.pid)
        for _ in range(crashes):
            assert process.alive(sup.pid)
            await family.tell("b", "crash")
        event = await process.events().receive()
        assert isinstance(event, Exit)
        assert event.ref is ref
        assert isinstance(event.result.error, Shutdown)
        assert family.alive() == ""
        assert family.entries().endswith("-b -a")

    simulate(main)


@simulated
async def test_restarts_that_are_long_ago_do_not_count() -> None:
    family = Family()
    async with Supervisor([family("w")], max_restarts=1, max_seconds=5) as sup:
        for _ in range(5):
            await family.tell("w", "crash")
            await sleep(6)
        assert process.alive(sup.pid)


@simulated
async def test_all_children_share_one_count_of_restarts() -> None:
    process.set_options(trap_links=True)
    family = Family()
    sup = await Supervisor.start_link([family(id) for id in "abcd"], max_restarts=3)
    for id in "abcd":
        await family.tell(id, "crash")
    assert not process.alive(sup.pid)


@simulated
async def test_the_restart_of_a_group_counts_once() -> None:
    family = Family()
    children = [family(id) for id in "abcdefgh"]
    async with Supervisor(children, strategy="one_for_all", max_restarts=1):
        await family.tell("a", "crash")
        assert family.alive() == "a b c d e f g h"


@simulated
async def test_ends_that_restart_nothing_do_not_count() -> None:
    family = Family()
    async with Supervisor([], max_restarts=0) as sup:
        for id in "abc":
            await sup.start_child(family(id, restart="temporary"))
            await family.tell(id, "crash")
        assert process.alive(sup.pid)


@simulated
async def test_a_supervisor_that_gave_up_is_restarted_by_its_own() -> None:
    family = Family()
    inner = Supervisor.child([family("w")], id="inner", max_restarts=0)
    async with Supervisor([inner]) as outer:
        first = (await outer.which_children())[0].pid
        await family.tell("w", "crash")
        assert (await outer.which_children())[0].pid is not first
        assert family.alive() == "w"


# Restarts that fail


@simulated
async def test_a_restart_that_fails_is_tried_again_at_once() -> None:
    family = Family()
    async with Supervisor([family("w")]) as sup:
        family.entries()
        family.failing["w"] = 2
        began = now()
        await family.tell("w", "crash")
        assert family.entries() == "crash w -w !w !w +w"
        assert now() - began < 1
        assert states(await sup.which_children()) == {"w": "running"}


@simulated
async def test_each_try_counts_and_too_many_end_the_supervisor() -> None:
    process.set_options(trap_links=True)
    family = Family()
    sup = await Supervisor.start_link([family("w")])
    family.entries()
    family.failing["w"] = 99
    await family.tell("w", "crash")
    assert family.entries() == "crash w -w !w !w !w"
    assert not process.alive(sup.pid)


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
def test_the_try_again_of_a_group_begins_where_it_failed(strategy: Any) -> None:
    async def main() -> None:
        family = Family()
        async with Supervisor([family(id) for id in "abc"], strategy=strategy):
            family.entries()
            family.failing["b"] = 1
            await family.tell("a", "crash")
            assert family.entries() == "crash a -a -c -b +a !b +b +c"

    simulate(main)


@simulated
async def test_requests_are_served_between_two_tries() -> None:
    family = Family()
    async with Supervisor([family("w")], max_restarts=1000) as sup:
        family.failing["w"] = 500
        process.send(family.pids["w"], "crash")
        await sleep("1ms")
        assert states(await sup.which_children()) == {"w": "restarting"}
        await sup.terminate_child("w")
        assert states(await sup.which_children()) == {"w": "none"}
        tries = family.diary.count("!w")
        await family.rest()
        assert family.diary.count("!w") == tries


@simulated
async def test_others_run_and_are_served_between_two_tries_that_fail_at_once() -> None:
    async def thief() -> None:
        process.register("w")
        await wait_forever()

    async with Supervisor([child(wait_forever, name="w")], max_restarts=10**6) as sup:
        process.kill(process.pid_of("w"))
        process.spawn(thief)
        while process.whereis("w") is None or len(states(await sup.which_children())) != 1:
            await sleep(0)
        assert states(await sup.which_children()) == {"w": "restarting"}
        await sup.terminate_child("w")
        assert states(await sup.which_children()) == {"w": "none"}


@simulated
async def test_a_supervisor_can_be_stopped_between_two_tries() -> None:
    family = Family()
    async with Supervisor([family("w")], max_restarts=1000):
        family.failing["w"] = 10_000
        process.send(family.pids["w"], "crash")
        await sleep("1ms")
    assert family.diary.count("!w") < 1000


# Significant children


@pytest.mark.parametrize(
    ("rule", "orders", "ends"),
    [
        ("any_significant", [("a", "return")], True),
        ("any_significant", [("t", "crash")], True),
        ("any_significant", [("a", "crash")], False),  # it is restarted
        ("any_significant", [("plain", "return")], False),
        ("all_significant", [("a", "return")], False),
        ("all_significant", [("a", "return"), ("t", "return")], True),
        ("all_significant", [("a", "shutdown"), ("t", "crash")], True),
    ],
)
def test_significant_children_end_their_supervisor(
    rule: Any, orders: list[tuple[str, str]], ends: bool
) -> None:
    async def main() -> None:
        process.set_options(trap_links=True)
        family = Family()
        children = [
            family("a", restart="transient", significant=True),
            family("t", restart="temporary", significant=True),
            family("plain", restart="transient"),
            family("bystander"),
        ]
        sup = await Supervisor.start_link(children, auto_shutdown=rule)
        for id, order in orders:
            await family.tell(id, order)
        assert process.alive(sup.pid) is not ends
        assert ("bystander" in family.alive()) is not ends

    simulate(main)


@simulated
async def test_to_terminate_a_significant_child_does_not_end_the_supervisor() -> None:
    family = Family()
    children = [family("a", restart="transient", significant=True)]
    async with Supervisor(children, auto_shutdown="any_significant") as sup:
        await sup.terminate_child("a")
        assert process.alive(sup.pid)
