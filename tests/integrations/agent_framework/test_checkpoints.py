"""Checkpoints of workflows in the store of an app, beside the framework's own in memory."""

from pathlib import Path
from typing import Any

import pytest

import perdure

pytest.importorskip("agent_framework")

from agent_framework import (
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    executor,
)

from perdure import Client, Encryption
from perdure.app import App
from perdure.base.encryption import generate_key
from perdure.integrations.agent_framework import PerdureCheckpointStorage
from tests.support.engine import durable

pytestmark = pytest.mark.once

NAME = "shouting"
ODD = "nul \0, half a pair \ud800"


class Secret:
    """A class of which the framework knows nothing."""


def point(id: str, minute: int, workflow: str = NAME) -> WorkflowCheckpoint:
    return WorkflowCheckpoint(
        workflow_name=workflow,
        graph_signature_hash="hash",
        checkpoint_id=id,
        timestamp=f"2026-01-01T00:{minute:02}:00+00:00",
        state={"text": ODD, "numbers": {1, 2}, "pair": (1, "x"), "bytes": b"\0\xff"},
        iteration_count=minute,
    )


def workflow(storage: Any, log: list[str]) -> Any:
    @executor(id="upper")
    async def upper(text: str, ctx: WorkflowContext[str]) -> None:
        log.append(text)
        await ctx.send_message(text.upper())

    @executor(id="shout")
    async def shout(text: str, ctx: WorkflowContext[Any, str]) -> None:
        log.append(text)
        await ctx.yield_output(f"{text}!")

    builder = WorkflowBuilder(name=NAME, start_executor=upper, checkpoint_storage=storage)
    return builder.add_edge(upper, shout).build()


async def told_of(storage: Any) -> list[Any]:
    """Use all of a storage; return what it answers."""
    told: list[Any] = [
        await storage.get_latest(workflow_name=NAME),
        await storage.delete("a"),
    ]
    points = point("a", 1), point("b", 3), point("c", 2), point("d", 9, "another")
    told += [await storage.save(each) for each in points]
    told.append(await storage.load("b"))
    told.append(await storage.get_latest(workflow_name=NAME))
    told.append(sorted(await storage.list_checkpoint_ids(workflow_name=NAME)))
    await storage.save(point("a", 7))  # takes the place of the first
    told.append(await storage.get_latest(workflow_name=NAME))
    told.append([await storage.delete("a"), await storage.delete("a")])
    found = await storage.list_checkpoints(workflow_name=NAME)
    told.append(sorted(found, key=lambda each: each.checkpoint_id))
    return told


@durable
async def test_it_answers_like_the_storage_of_the_framework(app: App) -> None:
    mine = PerdureCheckpointStorage(app)
    assert await told_of(mine) == await told_of(InMemoryCheckpointStorage())
    assert (
        await PerdureCheckpointStorage(app, tenant="other").get_latest(workflow_name=NAME) is None
    )
    for storage in (mine, InMemoryCheckpointStorage()):
        with pytest.raises(WorkflowCheckpointException):
            await storage.load("none")


@durable
async def test_a_workflow_goes_on_from_any_of_its_checkpoints(app: App) -> None:
    seen: list[Any] = []
    for storage in (PerdureCheckpointStorage(app), InMemoryCheckpointStorage()):
        log: list[str] = []
        outputs = (await workflow(storage, log).run("hello")).get_outputs()
        kept = await storage.list_checkpoints(workflow_name=NAME)
        kept.sort(key=lambda each: each.timestamp)
        again = await workflow(storage, log).run(checkpoint_id=kept[1].checkpoint_id)
        states = [(each.iteration_count, each.messages, each.state) for each in kept]
        seen.append([outputs, again.get_outputs(), log, states])
    assert seen[0] == seen[1]
    assert seen[0][:3] == [["HELLO!"], ["HELLO!"], ["hello", "HELLO", "HELLO"]]


@durable
async def test_only_types_that_are_allowed_are_saved(app: App) -> None:
    odd = point("a", 1)
    odd.state["secret"] = Secret()
    with pytest.raises(WorkflowCheckpointException):
        await PerdureCheckpointStorage(app).save(odd)
    named = f"{Secret.__module__}:{Secret.__qualname__}"
    storage = PerdureCheckpointStorage(app, allowed_checkpoint_types=[named])
    await storage.save(odd)
    assert isinstance((await storage.load("a")).state["secret"], Secret)


def test_checkpoints_are_encrypted_with_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path}/jobs.db"
        async with Client(url, encryption=Encryption([generate_key()])) as client:
            storage = PerdureCheckpointStorage(client)
            await storage.save(point("a", 1))
            assert await storage.load("a") == point("a", 1)
            assert await storage.list_checkpoints(workflow_name=NAME) == [point("a", 1)]

    perdure.run(main)
    stored = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert NAME.encode() in stored
    assert b"graph_signature_hash" not in stored
