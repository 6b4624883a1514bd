"""A job as an A2A agent: a real client against a real server on the loopback interface."""

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("a2a")

import httpx
from a2a.client import Client, ClientConfig, create_client
from a2a.helpers.proto_helpers import get_data_parts, get_text_parts, new_text_message
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Role,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError

from tests.support.a2a_agent import serving_agent

pytestmark = pytest.mark.once

COMPLETED, FAILED = TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_FAILED
INPUT_REQUIRED, CANCELED = TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_CANCELED
WORKING = (TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_SUBMITTED)


@pytest.fixture(scope="module")
def address(module_url: str) -> Generator[str]:
    with serving_agent(module_url) as found:
        yield found


@asynccontextmanager
async def client(address: str, user: str = "kim@acme") -> AsyncGenerator[Client]:
    async with (
        httpx.AsyncClient(headers={"x-user": user}, timeout=30) as http,
        await create_client(address, ClientConfig(httpx_client=http)) as made,
    ):
        yield made


async def say(made: Client, text: str, task: Task | None = None) -> list[StreamResponse]:
    message = new_text_message(text, role=Role.ROLE_USER)
    if task is not None:
        message.task_id, message.context_id = task.id, task.context_id
    return [event async for event in made.send_message(SendMessageRequest(message=message))]


def states(events: list[StreamResponse]) -> list[Any]:
    return [event.status_update.status.state for event in events if event.HasField("status_update")]


def task_of(events: list[StreamResponse]) -> Task:
    return next(event.task for event in events if event.HasField("task"))


def streamed(events: list[StreamResponse]) -> list[str]:
    """Return the words of the growing artifact, as a client that follows the rules has them."""
    words: list[str] = []
    for event in events:
        update = event.artifact_update
        if event.HasField("artifact_update") and update.artifact.artifact_id == "output":
            words = [*(words if update.append else []), *get_text_parts(update.artifact.parts)]
    return words


def result_of(task: Task) -> Any:
    (found,) = [each for each in task.artifacts if each.artifact_id == "result"]
    return get_data_parts(found.parts)[0]


async def test_a_message_begins_a_job_whose_output_and_result_are_streamed(address: str) -> None:
    async with client(address) as kim:
        events = await say(kim, "one two stumble three")
        task = task_of(events)
        assert streamed(events) == ["one", "two", "stumble", "three"]
        assert states(events)[-1] == COMPLETED
        later = await kim.get_task(GetTaskRequest(id=task.id))
    assert later.status.state == COMPLETED
    assert result_of(later) == {"said": "ONE TWO STUMBLE THREE"}


async def test_what_an_attempt_has_emitted_is_replaced_by_what_the_next_one_emits(
    address: str, tmp_path: Path
) -> None:
    seen, events = tmp_path / "seen", list[StreamResponse]()
    message = new_text_message(f"one {seen} two", role=Role.ROLE_USER)
    async with client(address) as kim:
        async for event in kim.send_message(SendMessageRequest(message=message)):
            events.append(event)
            if str(seen) in streamed(events):
                seen.touch()
    updates = [each.artifact_update for each in events if each.HasField("artifact_update")]
    words = [word for each in updates for word in get_text_parts(each.artifact.parts)]
    assert words.count("one") > 1  # of both attempts
    assert streamed(events) == ["one", str(seen), "two"]


async def test_a_question_is_input_required_and_the_next_message_answers_it(address: str) -> None:
    async with client(address) as kim:
        events = await say(kim, "buy a lamp")
        task = task_of(events)
        assert states(events)[-1] == INPUT_REQUIRED
        asked = (await kim.get_task(GetTaskRequest(id=task.id))).status
        assert asked.state == INPUT_REQUIRED
        assert "Buy it?" in get_text_parts(asked.message.parts)[0]
        assert states(await say(kim, "what do you mean?", task))[-1] == INPUT_REQUIRED
        assert states(await say(kim, "Yes, it is cheap", task))[-1] == COMPLETED
        done = await kim.get_task(GetTaskRequest(id=task.id))
        assert result_of(done) == {"said": "BUY A LAMP kim it is cheap"}
        other = task_of(await say(kim, "buy a boat"))
        assert states(await say(kim, "no", other))[-1] == FAILED
        why = (await kim.get_task(GetTaskRequest(id=other.id))).status.message
        assert "kim rejected" in get_text_parts(why.parts)[0]


async def test_a_job_that_receives_from_its_user_gets_the_next_message(address: str) -> None:
    async with client(address) as kim:
        task = task_of(await say(kim, "ask"))
        assert states(await say(kim, "my answer", task))[-1] == COMPLETED
        done = await kim.get_task(GetTaskRequest(id=task.id))
    assert result_of(done) == {"said": "ASK my answer"}


async def test_a_job_that_fails_says_why(address: str) -> None:
    async with client(address) as kim:
        events = await say(kim, "fail")
        assert states(events)[-1] == FAILED
        told = await kim.get_task(GetTaskRequest(id=task_of(events).id))
    assert "it cannot be done" in get_text_parts(told.status.message.parts)[0]


async def test_a_task_is_cancelled_and_nobody_else_sees_it(address: str) -> None:
    async with client(address) as kim:
        message = new_text_message("wait", role=Role.ROLE_USER)
        request = SendMessageRequest(message=message)
        request.configuration.return_immediately = True
        task = task_of([event async for event in first_of(kim, request)])
        for other in ("lee@acme", "kim@other"):
            async with client(address, other) as stranger:
                with pytest.raises(A2AError):
                    await stranger.get_task(GetTaskRequest(id=task.id))
                with pytest.raises(A2AError):
                    await stranger.cancel_task(CancelTaskRequest(id=task.id))
                listed = await stranger.list_tasks(ListTasksRequest())
                assert task.id not in [each.id for each in listed.tasks]
        listed = await kim.list_tasks(ListTasksRequest(page_size=1))
        assert [each.id for each in listed.tasks] == [task.id]
        assert listed.tasks[0].status.state in WORKING
        ended = await kim.cancel_task(CancelTaskRequest(id=task.id))
        assert ended.status.state == CANCELED
    async with client(address, "") as unknown:
        with pytest.raises(A2AError):
            await say(unknown, "hello")


async def first_of(made: Client, request: SendMessageRequest) -> AsyncGenerator[StreamResponse]:
    """Yield the first event of an answer that does not end, and hang up."""
    async with aclosing(
        cast("AsyncGenerator[StreamResponse]", made.send_message(request))
    ) as events:
        yield await anext(events)


async def test_a_task_goes_on_after_the_server_was_killed(url: str) -> None:
    with serving_agent(url) as address:
        async with client(address) as kim:
            task = task_of(await say(kim, "buy a lamp"))
    with serving_agent(url) as address:
        async with client(address) as kim:
            assert states(await say(kim, "yes", task))[-1] == COMPLETED
            done = await kim.get_task(GetTaskRequest(id=task.id))
    assert result_of(done) == {"said": "BUY A LAMP kim "}
