"""Child specs: mistakes are told at once and in a clear sentence; the short forms."""

from datetime import timedelta
from typing import Any

import pytest

from perdure import process
from perdure.errors import SpawnError
from perdure.otp.supervision.spec import (
    BRUTAL_KILL,
    ChildSpec,
    ChildType,
    Restart,
    SpawnStart,
    as_spec,
    as_specs,
    child,
)
from perdure.otp.supervision.supervisor import Supervisor
from perdure.process import Pid
from perdure.testing import simulated
from tests.support.processes import give, wait_forever


async def start() -> Pid:
    return process.spawn_linked(wait_forever)


class Worker:
    @classmethod
    def child_spec(cls, *args: Any) -> ChildSpec:
        return child(wait_forever, id=("worker", *args))


def test_the_defaults_are_those_of_a_permanent_worker() -> None:
    spec = ChildSpec("w", start)
    assert (spec.restart, spec.shutdown, spec.type) == (Restart.PERMANENT, 5.0, ChildType.WORKER)
    assert spec.significant is False


def test_a_supervisor_gets_all_the_time_that_it_needs() -> None:
    assert ChildSpec("s", start, type="supervisor").shutdown is None
    assert ChildSpec("s", start, type="supervisor", shutdown=3).shutdown == 3.0


def a_spec(fields: dict[str, Any]) -> ChildSpec:
    return ChildSpec(**fields)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(0, 0.0), ("100ms", 0.1), (timedelta(seconds=2), 2.0), (None, None), (BRUTAL_KILL,) * 2],
)
def test_the_time_to_stop_may_be_any_duration(given: Any, kept: object) -> None:
    assert ChildSpec("w", start, shutdown=given).shutdown == kept


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id": None}, "needs an id"),
        ({"restart": "always"}, "restart is one of permanent, transient, temporary"),
        ({"restart": None}, "restart is one of"),
        ({"type": "boss"}, "type is one of worker, supervisor"),
        ({"shutdown": -1}, "'w': shutdown"),
        ({"shutdown": "soon"}, "'w': shutdown"),
        ({"significant": True}, "cannot be permanent"),
    ],
)
def test_a_bad_value_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        a_spec({"id": "w", "start": start, **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id": []}, "must be hashable"),
        ({"start": None}, "start is a function"),
        ({"shutdown": object()}, "'w': shutdown"),
        ({"significant": 1, "restart": "transient"}, "significant is True or False"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        a_spec({"id": "w", "start": start, **fields})


@pytest.mark.parametrize("restart", ["transient", "temporary"])
def test_a_child_that_can_end_may_be_significant(restart: Any) -> None:
    assert ChildSpec("w", start, restart=restart, significant=True).significant


def test_specs_are_values() -> None:
    assert ChildSpec("w", start) == ChildSpec("w", start)
    with pytest.raises(AttributeError):
        ChildSpec("w", start).id = "x"  # pyright: ignore[reportAttributeAccessIssue]


# The function `child`


def test_a_function_is_named_by_its_name() -> None:
    spec = child(wait_forever)
    assert (spec.id, spec.start) == ("wait_forever", SpawnStart(wait_forever, ()))


def test_a_process_with_a_name_has_it_as_its_id() -> None:
    assert child(wait_forever, name="w").id == "w"


def test_the_arguments_go_to_the_function() -> None:
    assert child(give, 1, 2, id="x").start == SpawnStart(give, (1, 2))


def test_what_is_no_async_function_is_refused() -> None:
    with pytest.raises(SpawnError, match="async def"):
        child(len)  # pyright: ignore[reportArgumentType]


def test_a_spec_can_be_changed() -> None:
    spec = child(ChildSpec("w", start), id="other", restart="transient", shutdown=None)
    assert (spec.id, spec.restart, spec.shutdown) == ("other", Restart.TRANSIENT, None)
    assert spec.start is start


def test_a_class_is_asked_for_its_spec() -> None:
    assert child(Worker).id == ("worker",)
    assert child(Worker, 1, restart="temporary").id == ("worker", 1)
    assert child(Worker, id="index").id == "index"


# Short forms


def test_a_class_in_a_list_of_children_stands_for_its_spec() -> None:
    specs = as_specs([Worker, (Worker, "x"), child(wait_forever)])
    assert [spec.id for spec in specs] == [("worker",), ("worker", "x"), "wait_forever"]


def test_two_children_with_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="two children have the id 'w'"):
        as_specs([ChildSpec("w", start), child(wait_forever, id="w")])


@pytest.mark.parametrize(
    "bad", [None, 3, "worker", (), ("worker", 1), pytest.param(object(), id="object")]
)
def test_what_is_no_child_is_refused(bad: object) -> None:
    with pytest.raises(TypeError, match="a child is a ChildSpec"):
        as_spec(bad)


def test_a_bare_function_is_refused_with_the_right_spelling() -> None:
    with pytest.raises(TypeError, match=r"write child\(wait_forever"):
        as_spec(wait_forever)


def test_a_class_without_a_spec_is_refused() -> None:
    with pytest.raises(TypeError, match="has no child_spec"):
        as_spec(dict)


def test_a_class_that_gives_no_spec_is_refused() -> None:
    class Wrong:
        @classmethod
        def child_spec(cls) -> Any:
            return {"id": 1}

    with pytest.raises(TypeError, match="instead of a ChildSpec"):
        as_spec(Wrong)


def test_one_child_is_no_list_of_children() -> None:
    with pytest.raises(TypeError, match="children is a list"):
        as_specs(child(wait_forever))  # pyright: ignore[reportArgumentType]


# What a supervisor checks at once


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "simple"},
        {"auto_shutdown": "sometimes"},
        {"max_restarts": -1},
        {"max_seconds": 0},
    ],
)
def test_a_bad_option_of_a_supervisor_is_refused_before_anything_runs(
    options: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Supervisor([child(wait_forever)], **options)
    with pytest.raises(ValueError, match=r".+"):
        Supervisor.child([child(wait_forever)], id="s", **options)


def test_a_significant_child_needs_a_supervisor_that_cares() -> None:
    spec = child(wait_forever, restart="transient", significant=True)
    with pytest.raises(ValueError, match="auto_shutdown"):
        Supervisor([spec])
    Supervisor([spec], auto_shutdown="any_significant")


@simulated
async def test_start_link_refuses_bad_children_and_starts_nothing() -> None:
    before = len(process.processes())
    with pytest.raises(ValueError, match="two children"):
        await Supervisor.start_link([child(wait_forever), child(wait_forever)])
    assert len(process.processes()) == before


def test_a_supervisor_as_a_child_is_named_by_its_name() -> None:
    spec = Supervisor.child([], name="App.Root")
    assert (spec.id, spec.type, spec.shutdown) == ("App.Root", ChildType.SUPERVISOR, None)
    assert Supervisor.child([], id="x", name="y").id == "x"


def test_a_supervisor_without_id_and_name_cannot_be_a_child() -> None:
    with pytest.raises(ValueError, match="needs an id"):
        Supervisor.child([])
