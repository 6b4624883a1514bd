import asyncio
import re
from typing import Any

import pytest

from perdure import process
from perdure.errors import LinkedProcessDown
from perdure.process import LinkDown, Overflow, ProcessOptions
from perdure.testing import simulated
from tests.support.processes import (
    crash,
    end_of,
    link_down_of,
    others_rest,
    wait_forever,
    waiting_events,
)


@simulated
async def test_links_are_not_trapped_by_default() -> None:
    assert process.get_options().trap_links is False


@simulated
async def test_an_option_that_is_set_is_read_again() -> None:
    process.set_options(trap_links=True)
    assert process.get_options().trap_links is True
    process.set_options(trap_links=False)
    assert process.get_options().trap_links is False


@simulated
async def test_children_do_not_inherit_options() -> None:
    async def child() -> bool:
        return process.get_options().trap_links

    process.set_options(trap_links=True)
    assert (await end_of(child)).value is False


@simulated
async def test_a_task_inside_a_process_sets_the_options_of_the_process() -> None:
    async def inner() -> None:
        process.set_options(trap_links=True)

    await asyncio.create_task(inner())
    assert process.get_options().trap_links is True


@simulated
async def test_an_option_that_is_not_named_keeps_its_value() -> None:
    process.set_options(trap_links=True, mailbox_limit=5)
    process.set_options(overflow="drop_oldest")
    assert process.get_options() == ProcessOptions(True, 5, Overflow.DROP_OLDEST)


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"trap_links": 1}, "trap_links is True or False, not 1"),
    ({"trap_links": None}, "trap_links is True or False, not None"),
    ({"mailbox_limit": 0}, "mailbox_limit is at least 1, not 0"),
    ({"mailbox_limit": True}, "mailbox_limit is a number or None, not True"),
    ({"mailbox_limit": "5"}, "mailbox_limit is a number or None, not '5'"),
    ({"overflow": "explode"}, "'explode' is not a valid Overflow"),
    ({"colour": "red"}, "there is no option 'colour'; the options are trap_links, "),
]


@pytest.mark.parametrize(("bad", "message"), BAD_OPTIONS)
def test_one_bad_option_lets_none_of_the_call_count(bad: dict[str, Any], message: str) -> None:
    @simulated
    async def main() -> None:
        good = {"trap_links": True, "mailbox_limit": 3, "overflow": "exit"}
        with pytest.raises((ValueError, TypeError), match=message):
            process.set_options(**good | bad)
        assert process.get_options() == ProcessOptions()

    main()


# When the option counts


@simulated
async def test_a_link_down_is_judged_when_it_arrives_and_not_when_it_is_read() -> None:
    async def child() -> list[type]:
        process.set_options(trap_links=True)
        process.spawn_linked(crash)
        await others_rest()
        process.set_options(trap_links=False)
        await others_rest()
        return [type(event) for event in await waiting_events()]

    assert (await end_of(child)).value == [LinkDown]


@simulated
async def test_who_stops_trapping_dies_of_the_next_failure() -> None:
    async def child() -> None:
        process.set_options(trap_links=True)
        await link_down_of(process.spawn_linked(crash))
        process.set_options(trap_links=False)
        process.spawn_linked(crash)
        await wait_forever()

    assert isinstance((await end_of(child)).error, LinkedProcessDown)


@simulated
async def test_trapping_does_not_save_a_process_from_its_own_failure() -> None:
    async def child() -> None:
        process.set_options(trap_links=True)
        await crash("own")

    assert str((await end_of(child)).error) == "own"


@simulated
async def test_a_trapped_link_down_waits_for_a_process_that_does_not_listen_yet() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(crash)
    await process.sleep("1h")
    await link_down_of(pid)


# Within a block


@simulated
async def test_links_are_trapped_within_the_block_only() -> None:
    with process.trap_links():
        assert process.get_options().trap_links is True
    assert process.get_options().trap_links is False


@simulated
async def test_blocks_can_be_nested() -> None:
    with process.trap_links():
        with process.trap_links():
            pass
        assert process.get_options().trap_links is True


@simulated
async def test_a_failure_in_the_block_restores_the_option() -> None:
    with pytest.raises(ValueError, match="boom"), process.trap_links():
        await crash()
    assert process.get_options().trap_links is False


@simulated
async def test_the_option_of_otp_is_told_what_it_is_called_here() -> None:
    with pytest.raises(ValueError, match="no option 'trap_exit': write trap_links"):
        process.set_options(trap_exit=True)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("spawn_link", "process.spawn_linked"),
        ("spawn_monitor", "process.spawn_monitored"),
        ("case_receive", "await process.select(channel, …)"),
        ("exec", "await process.run_process"),
        ("lookup", "process.whereis"),
        ("self", "process.self_pid"),
    ],
)
def test_the_verbs_of_otp_are_told_what_they_are_called_here(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"'{name}': write {re.escape(instead)}$"):
        getattr(process, name)


def test_the_receiving_case_of_wippy_is_told_what_it_is_here() -> None:
    channel = process.Channel[int]()
    with pytest.raises(AttributeError, match=r"Channel has no case_receive: write `await select"):
        channel.case_receive()
    assert not hasattr(channel, "case_receive")


def test_an_unknown_verb_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'sponn'$"):
        getattr(process, "sponn")  # noqa: B009
