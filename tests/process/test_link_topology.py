"""Links in many processes at once: stars, chains, and very long chains."""

import gc
import traceback
import weakref

import pytest

from perdure import Settings, process
from perdure.errors import LinkedProcessDown
from perdure.process import Channel, LinkDown, Pid
from perdure.testing import simulate, simulated
from tests.support.processes import exit_of, others_rest, shut_down, wait_forever

LONG = 20_000


async def linked_to(pid: Pid) -> None:
    process.link(pid)
    await wait_forever()


# Stars and chains


@pytest.mark.parametrize("seed", range(5))
def test_in_a_star_all_die_with_the_centre_and_those_that_trap_are_told(seed: int) -> None:
    async def main() -> None:
        ready, told = Channel[None](20), list[Pid]()

        async def arm(traps: bool) -> None:
            process.set_options(trap_links=traps)
            process.link("hub")
            await ready.send(None)
            event = await process.events().receive()
            assert isinstance(event, LinkDown)
            told.append(event.sender)

        hub = process.spawn(wait_forever, name="hub")
        arms = [process.spawn(arm, n % 2 == 0) for n in range(10)]
        for _ in range(10):
            await ready.receive()
        shut_down(hub)
        await others_rest()
        assert told == [hub] * 5
        assert not any(process.alive(pid) for pid in arms)

    simulate(main, seed=seed)


@simulated
async def test_in_a_star_one_arm_that_fails_takes_all_along() -> None:
    hub = process.spawn(wait_forever)
    arms = [process.spawn(linked_to, hub) for _ in range(5)]
    await others_rest()
    process.kill(arms[2])
    await others_rest()
    assert not any(process.alive(pid) for pid in (hub, *arms))


@simulated
async def test_in_a_chain_a_failure_in_the_middle_goes_both_ways() -> None:
    chain = [process.spawn(wait_forever)]
    for _ in range(8):
        chain.append(process.spawn(linked_to, chain[-1]))
        await others_rest()
    process.kill(chain[4])
    await others_rest()
    assert not any(process.alive(pid) for pid in chain)


@simulated
async def test_a_trapping_link_in_a_chain_stops_the_failure() -> None:
    process.set_options(trap_links=True)
    first = process.spawn(wait_forever)
    process.link(first)
    last = process.spawn_linked(wait_forever)
    process.kill(first)
    await others_rest()
    assert process.alive(last)


@simulated
async def test_linked_processes_are_told_in_the_order_in_which_they_were_linked() -> None:
    ended: list[int] = []

    async def arm(hub: Pid, n: int) -> None:
        process.link(hub)
        try:
            await wait_forever()
        finally:
            ended.append(n)

    hub = process.spawn(wait_forever)
    for n in range(30):
        process.spawn(arm, hub, n)
    await others_rest()
    process.kill(hub)
    await others_rest()
    assert ended == list(range(30))


# Long chains


async def long_chain() -> list[Pid]:
    """Make a chain, monitored at its end."""
    chain = [process.spawn(wait_forever)]
    for _ in range(LONG):
        chain.append(process.spawn(linked_to, chain[-1]))
    process.monitor(chain[-1])
    await others_rest()
    return chain


async def error_at_the_end(chain: list[Pid]) -> BaseException | None:
    """Fail at the one end of a chain, and give the error of the other."""
    process.exit(ValueError("root"), chain[0])
    return (await exit_of(chain[-1])).error


@simulated(settings=Settings(report_crashes=False))
async def test_a_failure_walks_a_long_chain_to_its_end() -> None:
    chain = await long_chain()
    error = await error_at_the_end(chain)
    assert isinstance(error, LinkedProcessDown)
    assert (error.pid, str(error.root)) == (chain[-2], "root")
    assert len(process.processes()) == 1


@simulated(settings=Settings(report_crashes=False))
async def test_the_error_of_a_long_chain_can_be_printed() -> None:
    error = await error_at_the_end(await long_chain())
    assert error is not None
    for text in (str(error), repr(error), "".join(traceback.format_exception(error))):
        assert "root" in text
        assert len(text) < 2_000


@simulated(settings=Settings(report_crashes=False))
async def test_a_long_chain_can_be_garbage_collected() -> None:
    chain = await long_chain()
    processes = [weakref.ref(pid.target) for pid in chain]
    error = weakref.ref(await error_at_the_end(chain))
    del chain
    gc.collect()
    assert error() is None
    assert not any(process() for process in processes)
