"""The partition supervisor: one child for each part of the keys."""

from functools import partial
from typing import Any

import pytest

from perdure import process
from perdure.base.machine import cores
from perdure.errors import NameTaken, NoProcess, ProcError, Shutdown, StartError
from perdure.otp.supervision.partition import PartitionSupervisor, partition_of
from perdure.otp.supervision.spec import ChildSpec, ChildType, child
from perdure.otp.supervision.supervisor import Supervisor
from perdure.process import sleep
from perdure.testing import simulate, simulated
from tests.support.processes import living, wait_forever


async def named(*args: object) -> None:
    """Answer with the arguments."""
    async for request in process.requests():
        request.reply(args)


class Server:
    @classmethod
    def child_spec(cls, *args: Any) -> ChildSpec:
        return child(named, *args)


async def start(*args: object, key: object = None) -> Any:
    return process.spawn_linked(named, *args, key)


@simulated
async def test_each_partition_is_a_child_with_its_number() -> None:
    async with PartitionSupervisor(child(named), name="p", partitions=3) as sup:
        assert [info.id for info in await sup.which_children()] == [2, 1, 0]
        assert (await sup.count_children()).active == 3
        assert sup.partitions() == 3


@simulated
async def test_by_default_there_is_one_for_each_core() -> None:
    async with PartitionSupervisor(child(named), name="p") as sup:
        assert sup.partitions() == cores()


@simulated
async def test_a_key_always_leads_to_the_same_partition() -> None:
    async with PartitionSupervisor(child(named), name="p", partitions=4) as sup:
        for key in ("x", ("a", 1), 7, None, frozenset({1})):
            pids = {sup.lookup(key), sup.lookup(key), PartitionSupervisor.lookup("p", key)}
            assert len(pids) == 1


@pytest.mark.parametrize(("key", "number"), [(0, 0), (5, 1), (-5, 1), (7, 3), (-8, 0)])
def test_an_integer_is_spread_by_its_absolute_value(key: int, number: int) -> None:
    assert partition_of(key, 4) == number


@simulated
async def test_many_keys_reach_every_partition() -> None:
    async with PartitionSupervisor(child(named), name="p", partitions=4) as sup:
        assert len({sup.lookup(f"key {n}") for n in range(200)}) == 4


@pytest.mark.parametrize(
    "spec",
    [child(named, "x"), (Server, "x"), ChildSpec("s", partial(start, "x", key="k"))],
    ids=["function", "class", "partial"],
)
def test_each_partition_can_know_its_number(spec: Any) -> None:
    async def main() -> None:
        async with PartitionSupervisor(
            spec,
            name="p",
            partitions=2,
            with_arguments=lambda args, partition: (*args, partition),
        ) as sup:
            answers = [await process.call(sup.lookup(key), None) for key in (0, 1)]
            assert [answer[:2] for answer in answers] == [("x", 0), ("x", 1)]

    simulate(main)


def test_arguments_of_an_unknown_start_function_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="with_arguments"):
        PartitionSupervisor(
            ChildSpec("s", start), name="p", with_arguments=lambda args, number: args
        )


@simulated
async def test_a_partition_is_restarted_for_itself() -> None:
    async with PartitionSupervisor(child(named), name="p", partitions=3) as sup:
        before = [sup.lookup(key) for key in range(3)]
        process.kill(before[1])
        await sleep(1)
        after = [sup.lookup(key) for key in range(3)]
        assert [old is new for old, new in zip(before, after, strict=True)] == [True, False, True]


@simulated
async def test_a_partition_that_does_not_run_cannot_be_looked_up() -> None:
    spec = child(named, restart="transient")
    async with PartitionSupervisor(spec, name="p", partitions=2) as sup:
        pid = sup.lookup(1)
        process.exit(Shutdown(), dest=pid)
        await sleep(1)
        with pytest.raises(NoProcess, match="partition 1"):
            sup.lookup(1)
        sup.lookup(0)


@simulated
async def test_it_shrinks_and_grows_and_tells_the_old_number() -> None:
    async with PartitionSupervisor(child(named), name="p", partitions=4) as sup:
        kept = sup.lookup(0)
        assert await sup.resize(2) == 4
        assert [info.id for info in await sup.which_children()] == [1, 0]
        assert sup.lookup(2) is kept
        assert await PartitionSupervisor.resize("p", 4) == 2
        assert [info.id for info in await sup.which_children()] == [3, 2, 1, 0]
        assert sup.lookup(2) is not kept
        assert await sup.resize(4) == 4


@simulated
async def test_without_partitions_no_key_leads_anywhere() -> None:
    async with PartitionSupervisor(child(named), name="p", partitions=2) as sup:
        assert await sup.resize(0) == 2
        with pytest.raises(ProcError, match="no partitions"):
            sup.lookup("x")
        assert await sup.resize(1) == 0
        sup.lookup("x")


@pytest.mark.parametrize("bad", [3, -1, True, "2", None])
def test_a_bad_size_is_refused_and_changes_nothing(bad: Any) -> None:
    async def main() -> None:
        async with PartitionSupervisor(child(named), name="p", partitions=2) as sup:
            with pytest.raises((ValueError, TypeError)):
                await sup.resize(bad)
            assert sup.partitions() == 2

    simulate(main)


@simulated
async def test_a_partition_that_does_not_start_again_is_told() -> None:
    starts: list[int] = []

    async def picky() -> Any:
        starts.append(1)
        if len(starts) > 2:
            raise ValueError("full")
        return process.spawn_linked(wait_forever)

    async with PartitionSupervisor(ChildSpec("w", picky), name="p", partitions=2) as sup:
        await sup.resize(1)
        with pytest.raises(StartError):
            await sup.resize(2)
        assert sup.partitions() == 1
        sup.lookup("x")


@pytest.mark.parametrize(
    "options",
    [
        {"partitions": 0},
        {"partitions": 1.5},
        {"name": None},
        {"strategy": "x"},
        {"max_restarts": -1},
    ],
)
def test_bad_options_are_refused_at_once(options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"name": "p", **options}
    with pytest.raises((ValueError, TypeError)):
        PartitionSupervisor(child(named), **given)


def test_partitions_cannot_be_significant() -> None:
    with pytest.raises(ValueError, match="significant"):
        PartitionSupervisor(child(named, restart="transient", significant=True), name="p")


@simulated
async def test_its_name_is_its_own() -> None:
    sup = await PartitionSupervisor.start_link(child(named), name="p", partitions=1)
    with pytest.raises(NameTaken):
        await PartitionSupervisor.start_link(child(named), name="p", partitions=1)
    await sup.stop()
    assert len(living()) == 1


@simulated
async def test_it_can_be_a_child() -> None:
    spec = PartitionSupervisor.child(child(named), name="p", partitions=2)
    assert (spec.id, spec.type) == ("p", ChildType.SUPERVISOR)
    async with Supervisor([spec]):
        assert process.alive(PartitionSupervisor.lookup("p", "x"))


@simulated
async def test_another_supervisor_is_no_partition_supervisor() -> None:
    async with Supervisor([], name="s"):
        with pytest.raises(TypeError):
            PartitionSupervisor.lookup("s", 1)
