"""Methods that make a supervisor are called on its class, never on an instance."""

from typing import Any, Self

import pytest

from perdure import process
from perdure.otp import DynamicSupervisor, PartitionSupervisor, Supervisor, TaskSupervisor, child
from perdure.otp.supervision.supervisor import SupervisorHandle
from perdure.testing import simulated
from tests.support.processes import wait_forever


def described() -> list[SupervisorHandle]:
    return [
        Supervisor([], name="one"),
        DynamicSupervisor(name="two"),
        TaskSupervisor(name="three"),
        PartitionSupervisor(child(wait_forever), name="four", partitions=1),
    ]


@pytest.mark.parametrize("method", ["start", "start_link", "child"])
def test_a_class_method_on_a_described_supervisor_is_refused_and_says_what_to_write(
    method: str,
) -> None:
    for handle in described():
        kind = type(handle).__name__
        with pytest.raises(TypeError, match=rf"`{kind}\.{method}\(…\)`.*`async with`"):
            getattr(handle, method)()


@simulated
async def test_it_is_refused_on_a_running_supervisor_too_and_starts_nothing() -> None:
    async with DynamicSupervisor(name="jobs") as jobs:
        before = process.processes()
        with pytest.raises(TypeError, match="called on the class"):
            await jobs.start_link(name="others")
        assert process.processes() == before


@simulated
async def test_a_subclass_extends_the_class_method_and_is_guarded_as_well() -> None:
    class Quick(DynamicSupervisor):
        @classmethod
        async def start_link(cls, **options: Any) -> Self:
            return await super().start_link(**options, max_restarts=9)

    quick = await Quick.start_link(name="quick")
    assert process.whereis("quick") == quick.pid
    with pytest.raises(TypeError, match="Quick"):
        await Quick(name="quick").start_link()
