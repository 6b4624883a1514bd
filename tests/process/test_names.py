import pytest

from perdure import process
from perdure.errors import NameTaken, NoProcess, NotRegistered
from perdure.process import Cancel, Exit
from perdure.testing import simulated
from tests.support.processes import (
    Function,
    crash,
    end_of,
    exit_of,
    give,
    others_rest,
    wait_forever,
    waiting_events,
)


@simulated
async def test_a_registered_process_is_found_by_its_name() -> None:
    process.register("me")
    assert process.whereis("me") is process.self_pid()
    assert process.pid_of("me") is process.self_pid()


@simulated
async def test_another_process_can_be_registered() -> None:
    pid = process.spawn(wait_forever)
    process.register("other", pid)
    assert process.whereis("other") is pid


@simulated
async def test_a_process_may_have_many_names() -> None:
    process.register("one")
    process.register("two")
    assert process.whereis("one") is process.whereis("two") is process.self_pid()


@simulated
async def test_to_register_the_same_name_again_is_fine() -> None:
    process.register("me")
    process.register("me")
    assert process.info(process.self_pid()).names == ("me",)


@simulated
async def test_a_name_cannot_be_taken_from_another_process() -> None:
    holder = process.spawn(wait_forever, name="worker")
    with pytest.raises(NameTaken, match="worker") as caught:
        process.register("worker")
    assert caught.value.pid is holder
    assert process.whereis("worker") is holder


@simulated
async def test_the_own_name_is_taken_for_a_child() -> None:
    process.register("me")
    with pytest.raises(NameTaken):
        process.spawn(give, name="me")


@simulated
async def test_a_dead_process_cannot_be_registered() -> None:
    pid = process.spawn_monitored(give)
    await exit_of(pid)
    with pytest.raises(NoProcess):
        process.register("worker", pid)
    assert process.whereis("worker") is None


@simulated
async def test_an_unknown_name_is_nowhere() -> None:
    assert process.whereis("nobody") is None
    with pytest.raises(NotRegistered, match="nobody"):
        process.pid_of("nobody")


@simulated
async def test_unregister_tells_whether_anybody_had_the_name() -> None:
    process.register("me")
    assert process.unregister("me") is True
    assert process.unregister("me") is False
    assert process.whereis("me") is None


@simulated
async def test_a_name_given_at_birth_is_registered_before_spawn_returns() -> None:
    pid = process.spawn(wait_forever, name="worker")
    assert process.whereis("worker") is pid


@simulated
async def test_a_dead_process_frees_all_its_names() -> None:
    async def child() -> None:
        process.register("two")
        process.register("three")

    pid = process.spawn_monitored(child, name="one")
    await exit_of(pid)
    assert [process.whereis(name) for name in ("one", "two", "three")] == [None, None, None]


@pytest.mark.parametrize("end", [give, crash])
def test_who_gets_the_exit_can_start_a_successor_of_the_same_name(end: Function) -> None:
    @simulated
    async def main() -> None:
        first = process.spawn_monitored(end, name="worker")
        await exit_of(first)
        second = process.spawn(wait_forever, name="worker")
        assert process.whereis("worker") is second

    main()


@simulated
async def test_a_name_that_was_given_up_is_not_freed_again_by_death() -> None:
    async def child() -> None:
        process.unregister("worker")
        await process.inbox().receive()

    first = process.spawn_monitored(child, name="worker")
    await others_rest()
    process.register("worker")
    process.send(first, "end")
    await exit_of(first)
    assert process.whereis("worker") is process.self_pid()


@simulated
async def test_the_name_of_another_process_can_be_freed() -> None:
    process.spawn(wait_forever, name="worker")
    assert process.unregister("worker") is True
    process.register("worker")
    assert process.whereis("worker") is process.self_pid()


# A name is a destination


@simulated
async def test_messages_find_their_way_by_name() -> None:
    process.register("me")
    assert process.send("me", "topic", 1) is True
    assert (await process.inbox().receive()).payload == 1


@simulated
async def test_monitor_cancel_and_kill_take_names() -> None:
    async def child() -> str:
        event = await process.events().receive()
        assert isinstance(event, Cancel)
        return "cancelled"

    polite = process.spawn(child, name="polite")
    other = process.spawn(wait_forever, name="other")
    process.monitor("polite")
    process.monitor("other")
    process.cancel("polite")
    process.kill("other")
    await others_rest()
    exits = [event for event in await waiting_events() if isinstance(event, Exit)]
    assert {event.sender: event.result.value for event in exits} == {
        polite: "cancelled",
        other: None,
    }


@simulated
async def test_link_unlink_and_info_take_names() -> None:
    pid = process.spawn(wait_forever, name="worker")
    process.link("worker")
    assert process.info("worker").links == {process.self_pid()}
    process.unlink("worker")
    assert process.info(pid).links == frozenset()


@simulated
async def test_a_name_is_looked_up_when_the_call_is_made() -> None:
    first = process.spawn(wait_forever, name="worker")
    process.monitor("worker")
    process.unregister("worker")
    process.spawn(wait_forever, name="worker")
    process.kill(first)
    await exit_of(first)


# Within a block


@simulated
async def test_a_name_of_a_with_block_is_free_after_it() -> None:
    with process.registered("me"):
        assert process.whereis("me") is process.self_pid()
    assert process.whereis("me") is None


@simulated
async def test_a_name_of_a_with_block_is_free_after_a_failure_in_it() -> None:
    with pytest.raises(ValueError, match="boom"), process.registered("me"):
        await crash()
    assert process.whereis("me") is None


@simulated
async def test_a_with_block_does_not_take_the_name_from_who_has_it_meanwhile() -> None:
    other = process.spawn(wait_forever)
    with process.registered("name"):
        process.unregister("name")
        process.register("name", other)
    assert process.whereis("name") is other


@simulated
async def test_a_with_block_of_a_taken_name_is_not_entered() -> None:
    async def child() -> None:
        with process.registered("name"):
            raise AssertionError("entered")

    process.register("name")
    assert isinstance((await end_of(child)).error, NameTaken)
    assert process.whereis("name") is process.self_pid()


@simulated
async def test_names_differ_by_case_and_by_blanks() -> None:
    process.register("Me")
    assert process.whereis("me") is None
    assert process.whereis("Me ") is None
