"""The transcript of an agent in a real browser: live, readable, and only where there is one."""

import asyncio
from typing import Any

import pytest

from perdure import App, JobContext, StepContext
from perdure.integrations.durable_calls import (
    ModelAnswer,
    ModelCall,
    ToolOptions,
    ToolRun,
    emit,
    message,
    model_call,
    text_part,
    tool_call,
    tool_call_part,
    tool_response_part,
)
from perdure.jobs.budget import ModelUsage
from perdure.jobs.state import JobState
from tests.support.page_app import samples

pytest.importorskip("playwright", reason="needs playwright: pip install perdure[browser]")

from playwright.async_api import expect

from tests.support.browser import AXE, CHROMIUM, visit

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH"),
    pytest.mark.once,
    pytest.mark.timeout(300),  # a browser needs its time on a busy machine
]
expect.set_options(timeout=60_000)

USED = ModelUsage(model="gpt-5", input_tokens=900, cache_read_tokens=512, output_tokens=40)


def add_agent(app: App, goes_on: asyncio.Event) -> None:
    """Add a job that asks a model, calls a tool with an approval, and asks again, slowly."""

    async def first(step: StepContext) -> ModelAnswer:
        wanted = tool_call_part("c1", "send_mail", {"to": "kim", "제목": "안녕하세요"})
        said = message("assistant", text_part("I write to Kim."), wanted)
        return ModelAnswer(value=1, usage=USED, messages=[said])

    async def last(step: StepContext) -> ModelAnswer:
        emit(step, {"type": "response.output_text.delta", "delta": "Kim "}, topic="tokens")
        emit(step, {"type": "response.output_text.delta", "delta": "knows now"}, topic="tokens")
        await goes_on.wait()
        return ModelAnswer(
            value=2, usage=USED, messages=[message("assistant", text_part("Kim knows now."))]
        )

    async def mail(run: ToolRun) -> Any:
        return f"sent to {run.arguments['to']}"

    @app.job
    async def writer(ctx: JobContext, task: str) -> str:
        asked = [message("system", text_part("Be brief.")), message("user", text_part(task))]
        call = ModelCall(model="gpt-5", key="turn 1", messages=asked, price=lambda _: 0.25)
        await model_call(ctx, call, first)
        arguments = {"to": "kim", "제목": "안녕하세요"}
        options = ToolOptions(risk="high")
        sent = await tool_call(
            ctx, "send_mail", mail, key="c1", arguments=arguments, options=options
        )
        told = [message("tool", tool_response_part("c1", sent))]
        call = ModelCall(model="gpt-5", key="turn 2", messages=told, price=lambda _: 0.25)
        await model_call(ctx, call, last)
        return "done"

    _ = writer


async def test_a_transcript_grows_while_the_agent_works(app: App) -> None:
    goes_on = asyncio.Event()
    add_agent(app, goes_on)
    async with app.running(), visit(app) as there:
        handle = await app.submit(app.jobs["writer"]("Write to Kim."), user="kim")
        await handle.until(JobState.WAITING)
        page = await there.open(f"/jobs/{handle.id}")
        await there.live()
        shown = page.locator(".transcript")
        await expect(shown).to_contain_text("Write to Kim.")
        await expect(shown).to_contain_text("I write to Kim.")
        await expect(shown).to_contain_text("900 (512 cached) → 40 tokens")
        tool = shown.get_by_role("region", name="Tool send_mail")
        await expect(tool).to_contain_text('send_mail(to="kim", 제목="안녕하세요")')
        await expect(tool).to_contain_text("waits for a person")
        await tool.get_by_role("link", name="Decide").click()
        await page.get_by_role("button", name="Approve").click()
        await page.get_by_role("dialog").get_by_role("button", name="Approve").click()
        await page.get_by_text("Approved: the job continues").wait_for()
        await page.go_back()
        await expect(tool).to_contain_text("approved by ann")
        await expect(tool).to_contain_text("sent to kim")
        await expect(shown.locator(".turn-live")).to_have_text("Kim knows now")  # it still runs
        goes_on.set()
        await expect(shown).to_contain_text("Kim knows now.")
        await expect(shown.locator(".turn-live")).to_have_count(0)
        await expect(shown.locator(".facts")).to_contain_text("$0.50")
        await handle.result()
    assert there.wrong == []


async def test_a_job_without_models_has_no_transcript(app: App) -> None:
    async with app.running(), visit(app) as there:
        ids = await samples(app)
        page = await there.open(f"/jobs/{ids['order']}")
        await page.get_by_role("tab", name="Raw").wait_for()
        async with page.expect_response("**/transcript?*") as asked:
            await page.reload()
        await (await asked.value).finished()
        await expect(page.get_by_role("tab", name="Transcript")).to_have_count(0)
        # A step that settles what a model has used is a call of it.
        await there.open(f"/jobs/{ids['research']}")
        await expect(page.get_by_role("tab", name="Transcript")).to_have_count(1)
    assert there.wrong == []


@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: run scripts/page --install")
@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
async def test_axe_finds_nothing_serious_in_a_transcript(app: App, theme: str, width: int) -> None:
    goes_on = asyncio.Event()
    add_agent(app, goes_on)
    size = {"width": width, "height": 844}
    looks: dict[str, Any] = {"color_scheme": theme, "viewport": size, "bypass_csp": True}
    async with app.running(), visit(app, **looks) as there:
        handle = await app.submit(app.jobs["writer"]("Write to Kim."), user="kim")
        await handle.until(JobState.WAITING)
        page = await there.open(f"/jobs/{handle.id}?tab=transcript")
        await page.get_by_text("waits for a person", exact=True).wait_for()
        await page.add_script_tag(path=AXE)
        found = await page.evaluate("axe.run({resultTypes: ['violations']})")
        bad = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in bad] == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
    assert there.wrong == []
