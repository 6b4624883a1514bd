"""The picture of all processes: who runs under whom, for people and for programs."""

import json

import pytest

from perdure import process
from perdure.errors import NoProcess
from perdure.otp.supervision.dynamic import DynamicSupervisor
from perdure.otp.supervision.spec import child
from perdure.otp.supervision.supervisor import Supervisor
from perdure.otp.tree import TreeNode, tree
from perdure.process import sleep
from perdure.testing import simulated
from tests.support.children import Family
from tests.support.processes import dead, wait_forever


async def busy() -> None:
    process.spawn_linked(wait_forever)
    await wait_forever()


def shape(node: TreeNode) -> tuple[object, ...]:
    return (node.id, node.kind, *(shape(each) for each in node.children))


@simulated
async def test_the_tree_shows_who_runs_under_whom_in_start_order() -> None:
    inner = Supervisor.child([child(wait_forever, id="deep")], id="inner")
    async with Supervisor([child(wait_forever, id="a"), inner, child(busy, id="b")]) as sup:
        await sleep(1)
        (root,) = tree().roots
        assert root.pid is process.self_pid()
        (node,) = root.children
        assert node.pid is sup.pid
        assert shape(node) == (
            None,
            "supervisor",
            ("a", "worker"),
            ("inner", "supervisor", ("deep", "worker")),
            ("b", "worker", (None, "process")),
        )


@simulated
async def test_a_part_of_the_tree_can_be_taken_by_name_pid_or_handle() -> None:
    inner = Supervisor.child([child(wait_forever)], name="inner")
    async with Supervisor([inner]):
        pid = process.pid_of("inner")
        for ref in ("inner", pid):
            (node,) = tree(ref).roots
            assert (node.pid, node.id, node.label) == (pid, "inner", "inner")
            assert len(list(node)) == 2


@simulated
async def test_the_tree_of_a_dead_process_cannot_be_taken() -> None:
    with pytest.raises(NoProcess):
        tree(await dead())


@simulated
async def test_restarts_are_counted() -> None:
    family = Family()
    async with Supervisor([family("w"), family("x")], name="App"):
        await family.tell("w", "crash")
        await family.tell("w", "crash")
        found = tree().find("w")
        assert found is not None
        assert found.restarts == 2
        assert tree(family.pids["w"]).roots[0].restarts == 2
        assert "w: " in str(tree())
        assert "restarts 2" in str(tree())


@simulated
async def test_children_that_do_not_run_are_shown() -> None:
    family = Family()
    async with Supervisor([family("w"), family("x")], max_restarts=100) as sup:
        await sup.terminate_child("x")
        family.failing["w"] = 50
        process.send(family.pids["w"], "crash")
        await sleep("5.5ms")
        nodes = {node.id: node for node in tree(sup)}
        assert (nodes["w"].state, nodes["x"].state) == ("restarting", "not running")
        assert nodes["w"].pid is None
        assert "x: (worker, not running)" in str(tree(sup))


@simulated
async def test_the_children_of_a_dynamic_supervisor_are_shown() -> None:
    async with DynamicSupervisor() as sup:
        pids = [await sup.start_child(child(wait_forever)) for _ in range(3)]
        (node,) = tree(sup).roots
        assert [each.pid for each in node.children] == pids


@simulated
async def test_a_process_shows_its_mailbox_its_links_and_where_it_waits() -> None:
    async with Supervisor([child(wait_forever, name="w")]) as sup:
        await sleep(1)
        process.send("w", "one")
        process.send("w", "two")
        node = tree("w").roots[0]
        assert node.info is not None
        assert node.info.mailbox == 2
        assert node.info.links == {sup.pid}
        assert node.awaits is not None
        assert node.awaits.endswith("in wait_forever")
        assert "mailbox 2" in str(node)
        assert "links 1" in str(node)
        assert node.awaits in str(node)


@simulated
async def test_the_text_draws_the_branches() -> None:
    inner = Supervisor.child([child(wait_forever, id="deep")], name="inner")
    async with Supervisor([inner, child(wait_forever, id="last")], name="App"):
        lines = str(tree("App")).splitlines()
        assert "App (supervisor" in lines[0]
        assert lines[1].startswith("├─ inner: ")
        assert lines[2].startswith("│  └─ deep: ")
        assert lines[3].startswith("└─ last: ")


@simulated
async def test_the_tree_is_json_too() -> None:
    async with Supervisor([child(wait_forever, id=("tuple", 1))], name="App"):
        await sleep(1)
        (root,) = json.loads(tree("App").json())["roots"]
        assert root["names"] == ["App"]
        assert root["kind"] == "supervisor"
        (worker,) = root["children"]
        assert worker["id"] == "('tuple', 1)"
        assert worker["restarts"] == 0
        assert worker["mailbox"] == 0
        assert worker["links"] == [root["pid"]]
        assert "wait_forever" in worker["stack"][0]
        assert worker["awaits"] in worker["stack"]


@simulated
async def test_processes_whose_parent_is_dead_are_roots() -> None:
    async def parent() -> None:
        process.spawn(wait_forever, name="orphan")

    await process.run_process(parent)
    assert [root.label for root in tree().roots][-1] == "orphan"
    assert tree().find("orphan") is not None
    assert tree().find("nobody") is None


@simulated
async def test_a_tree_as_deep_as_a_long_chain_can_be_taken() -> None:
    async def link(left: int) -> None:
        if left:
            process.spawn_linked(link, left - 1)
        await wait_forever()

    process.spawn(link, 3000)
    await sleep(1)
    assert len(list(tree())) == 3002
    assert str(tree()).count("\n") == 3001
