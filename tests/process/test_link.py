"""Links: two-way, one fate, trapped or not, and the reason that spreads."""

import pytest

from perdure import process
from perdure.errors import Killed, LinkedProcessDown, NoProcess, NotRegistered, Shutdown
from perdure.process import Exit, Pid, sleep
from perdure.testing import simulate, simulated
from tests.support.processes import (
    crash,
    dead,
    drain,
    exit_of,
    link_down_of,
    now,
    others_rest,
    trap_and_wait,
    wait_forever,
)


async def linked_to(pid: Pid) -> None:
    process.link(pid)
    await wait_forever()


async def fail_on_request() -> None:
    message = await process.inbox().receive()
    raise message.payload


def links_of(pid: Pid) -> set[Pid]:
    return set(process.info(pid).links)


# The tie


@simulated
async def test_a_link_is_seen_from_both_sides() -> None:
    pid = process.spawn(wait_forever)
    process.link(pid)
    assert links_of(pid) == {process.self_pid()}
    assert links_of(process.self_pid()) == {pid}


@simulated
async def test_linking_twice_is_one_link() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(wait_forever)
    process.link(pid)
    process.kill(pid)
    await others_rest()
    assert len(await drain(process.events())) == 1


@simulated
async def test_one_unlink_ends_a_link_that_was_made_twice() -> None:
    pid = process.spawn_linked(wait_forever)
    process.link(pid)
    process.unlink(pid)
    process.kill(pid)
    await others_rest()


@simulated
async def test_linking_to_oneself_does_nothing() -> None:
    process.link(process.self_pid())
    assert links_of(process.self_pid()) == set()


@simulated
async def test_linking_to_a_dead_pid_raises_and_the_caller_lives() -> None:
    with pytest.raises(NoProcess):
        process.link(await dead())
    process.set_options(trap_links=True)
    with pytest.raises(NoProcess):
        process.link(await dead())
    assert await drain(process.events()) == []


@simulated
async def test_a_link_by_name_ties_to_who_has_the_name() -> None:
    pid = process.spawn(wait_forever, name="clerk")
    process.link("clerk")
    assert links_of(process.self_pid()) == {pid}
    process.unlink("clerk")
    assert links_of(process.self_pid()) == set()
    with pytest.raises(NotRegistered):
        process.link("nobody")


# Death goes both ways


@simulated
async def test_a_child_that_fails_takes_its_parent_along() -> None:
    async def parent() -> None:
        process.spawn_linked(crash)
        await wait_forever()

    pid = process.spawn_monitored(parent)
    assert isinstance((await exit_of(pid)).error, LinkedProcessDown)


@simulated
async def test_a_parent_that_fails_takes_its_child_along() -> None:
    children: list[Pid] = []

    async def parent() -> None:
        children.append(process.spawn_linked(wait_forever))
        await sleep(1)
        raise ValueError

    process.spawn(parent)
    await sleep(2)
    assert not process.alive(children[0])


@simulated
async def test_a_normal_end_tells_links_nothing() -> None:
    peers = [process.spawn(wait_forever), process.spawn(trap_and_wait)]

    async def member() -> None:
        for peer in peers:
            process.link(peer)

    process.set_options(trap_links=True)
    pid = process.spawn_linked(member)
    await others_rest()
    assert not process.alive(pid)
    assert all(process.alive(peer) for peer in peers)
    assert [process.info(peer).mailbox for peer in peers] == [0, 0]
    assert [links_of(peer) for peer in peers] == [set(), set()]
    assert await drain(process.events()) == []


@simulated
async def test_a_linked_child_that_dies_at_once_is_told_though_it_never_ran() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(wait_forever)
    process.kill(pid)
    assert isinstance(await link_down_of(pid), Killed)


@simulated
async def test_a_process_that_never_asked_for_events_dies_all_the_same() -> None:
    victim = process.spawn(wait_forever)
    process.spawn(linked_to, victim)
    killer = process.spawn(linked_to, victim)
    await others_rest()
    process.kill(killer)
    await others_rest()
    assert not process.alive(victim)


@simulated
async def test_a_victim_may_clean_up_before_it_is_dead() -> None:
    async def tidy() -> None:
        try:
            await wait_forever()
        finally:
            await sleep("2s")

    victim = process.spawn_monitored(tidy)
    peer = process.spawn(linked_to, victim)
    await others_rest()
    start = now()
    process.kill(peer)
    assert isinstance((await exit_of(victim)).error, LinkedProcessDown)
    assert now() - start == pytest.approx(2)


# Trap


@simulated
async def test_who_traps_gets_link_down_with_the_very_error_and_lives_on() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(fail_on_request)
    error = ValueError("broken")
    process.send(pid, "fail", error)
    assert await link_down_of(pid) is error


@simulated
async def test_a_trapping_process_still_dies_of_a_kill() -> None:
    pid = process.spawn_monitored(trap_and_wait)
    await others_rest()
    process.kill(pid)
    assert isinstance((await exit_of(pid)).error, Killed)


# Unlink


@simulated
async def test_after_unlink_the_failure_of_one_does_not_touch_the_other() -> None:
    pid = process.spawn_linked(wait_forever)
    process.unlink(pid)
    process.kill(pid)
    await others_rest()
    assert links_of(process.self_pid()) == set()


@simulated
async def test_either_side_may_unlink() -> None:
    async def leaver(parent: Pid) -> None:
        process.unlink(parent)
        raise ValueError

    pid = process.spawn_linked(leaver, process.self_pid())
    await others_rest()
    assert not process.alive(pid)


@simulated
async def test_unlink_succeeds_where_there_is_no_link() -> None:
    process.unlink(process.spawn(wait_forever))
    process.unlink(process.self_pid())
    process.unlink(await dead())


@simulated
async def test_unlink_takes_a_link_down_that_waits_out_of_the_queue() -> None:
    process.set_options(trap_links=True)
    first, second = process.spawn_linked(crash), process.spawn_linked(crash)
    await others_rest()
    process.unlink(first)
    assert [event.sender for event in await drain(process.events())] == [second]


@simulated
async def test_unlink_without_flush_leaves_a_link_down_that_waits() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(crash)
    await others_rest()
    process.unlink(pid, flush=False)
    assert len(await drain(process.events())) == 1


@pytest.mark.parametrize("seed", range(20))
def test_unlink_in_the_turn_in_which_the_peer_fails_decides_cleanly(seed: int) -> None:
    """Either the unlink came first and one lives on, or the failure did and both are dead."""

    async def main() -> None:
        order: list[str] = []

        async def fails() -> None:
            await process.inbox().receive()
            order.append("fail")
            raise ValueError

        async def unlinks(peer: Pid) -> None:
            process.link(peer)
            await process.inbox().receive()
            order.append("unlink")
            process.unlink(peer)
            await wait_forever()

        peer = process.spawn(fails)
        pid = process.spawn(unlinks, peer)
        await others_rest()
        process.send(peer, "go")
        process.send(pid, "go")
        await others_rest()
        assert process.alive(pid) == (order[0] == "unlink")

    simulate(main, seed=seed)


# The reason


@simulated
async def test_the_reason_of_a_victim_names_its_neighbour_and_the_first_cause() -> None:
    error = ValueError("root")
    first = process.spawn(fail_on_request)
    second = process.spawn(linked_to, first)
    third = process.spawn(linked_to, second)
    process.monitor(third)
    await others_rest()
    process.send(first, "fail", error)
    down = (await exit_of(third)).error
    assert isinstance(down, LinkedProcessDown)
    assert down.pid is second
    assert down.root is error
    assert down.__cause__ is error


@simulated
async def test_the_reason_of_a_victim_is_what_its_neighbour_died_of() -> None:
    error = ValueError("root")
    first = process.spawn(fail_on_request)
    second = process.spawn(linked_to, first)
    process.monitor(second)
    await others_rest()
    process.send(first, "fail", error)
    down = (await exit_of(second)).error
    assert isinstance(down, LinkedProcessDown)
    assert (down.pid, down.reason, down.root) == (first, error, error)


@simulated
async def test_each_victim_gets_an_error_object_of_its_own() -> None:
    hub = process.spawn(fail_on_request)
    victims = [process.spawn(linked_to, hub) for _ in range(3)]
    for victim in victims:
        process.monitor(victim)
    await others_rest()
    process.send(hub, "fail", ValueError())
    await others_rest()
    events = await drain(process.events())
    errors = [event.result.error for event in events if isinstance(event, Exit)]
    assert len({id(error) for error in errors}) == 3


@simulated
async def test_a_shutdown_passes_through_a_chain_unchanged() -> None:
    first = process.spawn(wait_forever)
    last = first
    for _ in range(5):
        last = process.spawn(linked_to, last)
        await others_rest()
    process.monitor(last)
    reason = Shutdown("night")
    process.exit(reason, first)
    assert (await exit_of(last)).error is reason


@simulated
async def test_a_kill_spreads_as_a_linked_failure_that_can_be_trapped() -> None:
    process.set_options(trap_links=True)
    first = process.spawn(wait_forever)
    second = process.spawn(linked_to, first)
    await others_rest()
    process.link(second)
    process.kill(first)
    down = await link_down_of(second)
    assert isinstance(down, LinkedProcessDown)
    assert isinstance(down.root, Killed)


# Exit signals by hand


@simulated
async def test_a_signal_by_hand_spreads_over_links_like_a_failure() -> None:
    error = ValueError("by hand")
    first = process.spawn(wait_forever)
    second = process.spawn(linked_to, first)
    process.monitor(second)
    await others_rest()
    process.exit(error, first)
    down = (await exit_of(second)).error
    assert isinstance(down, LinkedProcessDown)
    assert down.root is error


@simulated
async def test_who_traps_is_told_of_a_signal_by_hand_with_the_pid_of_the_signaller() -> None:
    async def sender(dest: Pid) -> None:
        process.exit(ValueError("by hand"), dest)

    process.set_options(trap_links=True)
    pid = process.spawn(sender, process.self_pid())
    assert str(await link_down_of(pid)) == "by hand"
