"""Jobs and approvals as MCP tasks: a real client against a real server, by stdio and HTTP."""

import os
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

import pytest

pytest.importorskip("mcp")

from httpx2 import AsyncClient
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, Request, Result
from pydantic import ConfigDict

from perdure.integrations.mcp import IDEMPOTENCY_KEY
from tests.support.cli import ROOT
from tests.support.mcp_jobs import serving_jobs

pytestmark = pytest.mark.once


class TaskRequest(Request[dict[str, Any], str]):
    name_param: ClassVar[str | None] = "taskId"


class Answer(Result):
    model_config = ConfigDict(extra="allow")


class CreatedTask(Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str


async def ask(session: Any, method: str, task: str, **more: Any) -> dict[str, Any]:
    request = TaskRequest(method=f"tasks/{method}", params={"taskId": task, **more})
    answer = await session.send_request(request, Answer)
    return answer.model_dump(by_alias=True, mode="json")


class Tasks(ClientExtension):
    """A client of tasks: it polls, and answers questions as it was told to."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, **answer: Any) -> None:
        self.answer = answer
        self.seen: list[dict[str, Any]] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self.resolve)]

    async def resolve(self, created: CreatedTask, ctx: ClaimContext) -> CallToolResult:
        while True:
            now = await ask(ctx.session, "get", created.task_id)
            self.seen.append(now)
            if now["status"] == "completed":
                return CallToolResult.model_validate(now["result"])
            if now["status"] == "input_required":
                answers = dict.fromkeys(now["inputRequests"], self.answer)
                await ask(ctx.session, "update", created.task_id, inputResponses=answers)


@pytest.fixture(scope="module")
def address(module_url: str) -> Generator[str]:
    with serving_jobs(module_url) as found:
        yield found


@asynccontextmanager
async def client(address: str, user: str, *extensions: ClientExtension) -> AsyncGenerator[Client]:
    async with AsyncClient(headers={"x-user": user}) as http:
        transport = streamable_http_client(address, http_client=http)
        async with Client(transport, extensions=list(extensions)) as connected:
            yield connected


def text_of(result: Any) -> str:
    return result.content[0].text


YES = {"action": "accept", "content": {"approve": True, "reason": "fine"}}


async def test_a_job_is_a_tool_whose_schema_a_client_sees_and_whose_result_it_gets(
    address: str,
) -> None:
    async with client(address, "kim@acme") as plain:  # it knows no tasks, so it waits
        listed = {each.name: each for each in (await plain.list_tools()).tools}
        assert set(listed) == {"greet", "deploy", "wait", "fail"}
        properties = listed["greet"].input_schema["properties"]
        assert properties["name"]["type"] == "string"
        assert properties["times"]["default"] == 1
        assert listed["greet"].input_schema["required"] == ["name"]
        result = await plain.call_tool("greet", {"name": "Kim", "times": 2})
        assert result.structured_content == {"result": ["hello Kim", "hello Kim"]}
        failed = await plain.call_tool("fail", {})
        assert failed.is_error
        assert "it cannot be done" in text_of(failed)
        wrong = await plain.call_tool("greet", {"name": 7})
        assert wrong.is_error
        assert "`name` has the wrong type" in text_of(wrong)


async def test_a_question_of_a_job_is_an_elicitation_that_the_client_answers(address: str) -> None:
    tasks = Tasks(**YES)
    async with client(address, "kim@acme", tasks) as known:
        result = await known.call_tool("deploy", {"version": 7})
    assert text_of(result) == "7 by kim: fine"
    (asked,) = [each for each in tasks.seen if each["status"] == "input_required"][:1]
    (request,) = asked["inputRequests"].values()
    assert request["method"] == "elicitation/create"
    assert "Deploy 7?" in request["params"]["message"]
    assert '{"version":7}' in request["params"]["message"]


@pytest.mark.parametrize(
    "answer", [{"action": "decline"}, {"action": "accept", "content": {"approve": False}}]
)
async def test_a_no_rejects(address: str, answer: dict[str, Any]) -> None:
    async with client(address, "kim@acme", Tasks(**answer)) as known:
        result = await known.call_tool("deploy", {"version": 8})
    assert result.is_error
    assert "kim rejected" in text_of(result)


async def begin(known: Client, tool: str, arguments: dict[str, Any], key: str = "") -> str:
    meta: Any = {IDEMPOTENCY_KEY: key} if key else None
    created = await known.session.call_tool(tool, arguments, meta=meta, allow_claimed=True)
    assert isinstance(created, CreatedTask)
    assert created.status == "working"
    return created.task_id


async def test_a_task_is_cancelled_and_nobody_else_sees_it(address: str) -> None:
    async with client(address, "kim@acme", Tasks()) as kim:
        task = await begin(kim, "wait", {})
        for other in ("lee@acme", "kim@other"):
            async with client(address, other, Tasks()) as stranger:
                for method in ("get", "cancel"):
                    with pytest.raises(MCPError, match="no such task"):
                        await ask(stranger.session, method, task)
                with pytest.raises(MCPError, match="no such task"):
                    await ask(stranger.session, "update", task, inputResponses={})
        assert (await ask(kim.session, "get", task))["status"] == "working"
        await ask(kim.session, "cancel", task)
        while (now := await ask(kim.session, "get", task))["status"] != "cancelled":
            assert now["status"] == "working"
        await ask(kim.session, "cancel", task)  # of what has ended: it is only acknowledged
        with pytest.raises(MCPError, match="no such task"):
            await ask(kim.session, "get", "0" * 32)


async def test_who_may_not_decide_is_not_asked_and_an_old_answer_is_ignored(address: str) -> None:
    async with client(address, "kim@acme", Tasks()) as kim:
        task = await begin(kim, "deploy", {"version": 100})  # four eyes
        while "Deploy 100?" not in (now := await ask(kim.session, "get", task)).get(
            "statusMessage", ""
        ):
            assert now["status"] == "working"
        await ask(kim.session, "update", task, inputResponses={"unknown": YES})
        assert (await ask(kim.session, "get", task))["status"] == "working"
        await ask(kim.session, "cancel", task)


async def test_the_same_key_is_the_same_task_and_nobody_is_anybody(address: str) -> None:
    async with client(address, "kim@acme", Tasks()) as kim:
        first = await begin(kim, "greet", {"name": "Kim"}, "k1")
        assert await begin(kim, "greet", {"name": "Kim"}, "k1") == first
        assert await begin(kim, "greet", {"name": "Kim"}, "k2") != first
    async with client(address, "lee@acme", Tasks()) as lee:
        assert await begin(lee, "greet", {"name": "Kim"}, "k1") != first
    async with client(address, "", Tasks()) as unknown:
        with pytest.raises(MCPError, match="who you are"):
            await unknown.call_tool("greet", {"name": "Kim"})


async def test_a_task_by_stdio_is_still_there_after_the_server_was_started_again(
    url: str,
) -> None:
    arguments = ["-m", "tests.support.mcp_jobs"]
    environment = {**os.environ, "WHO": "kim@acme", "PERDURE_URL": url}
    server = StdioServerParameters(
        command=sys.executable, args=arguments, cwd=ROOT, env=environment
    )
    async with Client(server, extensions=[Tasks()]) as before:
        task = await begin(before, "deploy", {"version": 9})
    async with Client(server, extensions=[Tasks()]) as after:
        while (now := await ask(after.session, "get", task))["status"] != "input_required":
            assert now["status"] == "working"
        answers = dict.fromkeys(now["inputRequests"], YES)
        await ask(after.session, "update", task, inputResponses=answers)
        while (now := await ask(after.session, "get", task))["status"] != "completed":
            assert now["status"] in ("working", "input_required")
        assert text_of(CallToolResult.model_validate(now["result"])) == "9 by kim: fine"
