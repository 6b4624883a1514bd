"""The dashboard in a real browser."""

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import App, JobContext, Retry, StepContext
from perdure.jobs.model import JobChange, NewJob
from perdure.jobs.state import JobState
from perdure.web.access.principal import Role
from tests.support.page_app import SAMPLES, samples
from tests.support.store import claim_one, entry, new_job, write_of

pytest.importorskip("playwright", reason="needs playwright: pip install perdure[browser]")

from playwright.async_api import expect

from tests.support.browser import AXE, CHROMIUM, OneGate, Visit, chromium, served, visit

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH"),
    pytest.mark.once,
    pytest.mark.timeout(300),  # a browser needs its time on a busy machine
]
expect.set_options(timeout=60_000)

PAGES = {
    "/jobs": "Jobs",
    "/inbox": "Approvals",
    "/effects": "Effects",
    "/errors": "Errors",
    "/workers": "Workers",
    "/processes": "Processes",
    "/schedules": "Schedules",
    "/charts": "Metrics",
    "/audit": "Audit",
    "/tokens": "Tokens",
    "/compare": "Compare",
}
TABS = ("journal", "attempts", "effects", "undo", "output", "events", "raw")


async def look_at(there: Visit, path: str) -> None:
    """Open a path and wait until it shows what it has, or that it has nothing."""
    page = await there.open(path)
    await page.locator("main h1").first.wait_for()
    await expect(page.locator("main [aria-busy=true]")).to_have_count(0)


# Every page


async def test_every_page_is_drawn_without_an_error_or_a_violation(app: App) -> None:
    async with app.running(), visit(app) as there:
        ids = await samples(app)
        for path, title in PAGES.items():
            await look_at(there, path)
            await expect(there.page.locator("main h1").first).to_have_text(title)
        for tab in TABS:
            await look_at(there, f"/jobs/{ids['order']}?tab={tab}")
        for name, id in ids.items():
            await look_at(there, f"/jobs/{id}")
            await expect(there.page.get_by_role("heading", level=1)).to_contain_text(name)
        await expect(there.page.locator(".trouble")).to_have_count(0)
    assert there.wrong == []


async def test_empty_pages_teach(app: App) -> None:
    async with visit(app) as there:
        await look_at(there, "/jobs")
        await expect(there.page.get_by_text("app.run_sync(migrate(8)")).to_be_visible()
        await look_at(there, "/inbox")
        await expect(there.page.get_by_text("ctx.approve(")).to_be_visible()
    assert there.wrong == []


@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: run scripts/page --install")
@pytest.mark.parametrize(
    ("theme", "what", "width"),
    [
        ("light", "pages", 1280),
        ("dark", "pages", 1280),
        ("light", "tabs", 1280),
        ("dark", "tabs", 1280),
        ("dark", "pages", 390),
    ],
)
async def test_axe_finds_nothing_serious(app: App, theme: str, what: str, width: int) -> None:
    looks: dict[str, Any] = {
        "color_scheme": theme,
        "viewport": {"width": width, "height": 844},
    }
    async with app.running(), visit(app, **looks, bypass_csp=True) as there:
        ids = await samples(app)
        tabs = [f"/jobs/{ids['order']}", *(f"/jobs/{ids['checkout']}?tab={tab}" for tab in TABS)]
        for path in PAGES if what == "pages" else tabs:
            await look_at(there, path)
            await there.page.add_script_tag(path=AXE)
            found = await there.page.evaluate("axe.run({resultTypes: ['violations']})")
            serious = [
                (each["id"], [node["html"][:160] for node in each["nodes"]])
                for each in found["violations"]
                if each["impact"] in ("serious", "critical")
            ]
            assert serious == [], path
            assert await there.page.evaluate("document.documentElement.scrollWidth") <= width, path


async def test_the_page_works_below_a_prefix(app: App) -> None:
    async with app.running(), served(app, prefix="/ops") as site, chromium() as browser:
        ids = await samples(app)
        there = Visit(await browser.new_page(), site)
        await look_at(there, f"/jobs/{ids['fail']}")
        await there.live()
        await there.page.get_by_role("link", name="Approvals").click()
        await expect(there.page.get_by_role("heading", name="Send this offer?")).to_be_visible()
        assert there.page.url == f"{site}/inbox"
    assert there.wrong == []


# What people do


async def test_an_approval_in_the_inbox_lets_the_job_go_on(app: App) -> None:
    async with app.running(), visit(app) as there:
        handle = await app.submit(app.jobs["offer"](900), user="kim")
        await handle.until(JobState.WAITING)
        await look_at(there, "/inbox")
        await there.page.get_by_role("heading", name="Send this offer?").wait_for()
        await there.page.keyboard.press("a")
        dialog = there.page.get_by_role("dialog")
        await expect(dialog).to_contain_text('"usd": 900')
        await dialog.get_by_role("button", name="Approve").click()
        await there.page.get_by_text("Approved: the job continues").wait_for()
        assert await handle.result() == "sent by ann"
        await expect(there.page.get_by_text("Nothing to decide")).to_be_visible()
    assert there.wrong == []


async def test_an_edit_and_a_fork_leave_what_is_not_shown_as_it_is_stored(app: App) -> None:
    iban, rows = "DE02120300000000202051", [{"name": "a", "token": "t-1"}]
    async with app.running(), visit(app) as there:
        page, dialog = there.page, there.page.get_by_role("dialog")
        handle = await app.submit(app.jobs["transfer"](iban, 1400, rows), user="kim")
        await handle.until(JobState.WAITING)
        await look_at(there, "/inbox")
        await page.get_by_role("heading", name="send_money of job transfer").wait_for()
        assert iban not in await page.content()
        await page.get_by_role("button", name="Show the whole number").click()
        await expect(page.locator(".will")).to_contain_text(iban)
        await page.get_by_role("button", name="Hide it").click()
        await expect(page.locator(".will")).to_contain_text("[removed: …2051, fp ")
        await page.keyboard.press("e")
        field = dialog.get_by_label("Arguments, as JSON")
        shown = await field.input_value()
        await field.fill(shown.replace("1400", "1399").replace('"a"', '"[removed: …2051]"'))
        await expect(dialog.get_by_role("alert")).to_contain_text("rows.0.name")
        await expect(dialog.get_by_role("button", name="Approve as edited")).to_be_disabled()
        await field.fill(shown.replace("1400", "1399").replace('"a"', '"b"'))
        await expect(dialog.get_by_label("Differences")).to_contain_text('"usd": 1399')
        await dialog.get_by_role("button", name="Approve as edited").click()
        await page.get_by_text("Approved: the job continues").wait_for()
        assert await handle.result() == f"1399 to {iban}, t-1"
        await look_at(there, f"/jobs/{handle.id}")
        await page.get_by_role("button", name="Fork").first.click()
        field = dialog.get_by_label("Arguments, if others are wanted")
        await field.fill((await field.input_value()).replace("1400", "1398"))
        await dialog.get_by_role("button", name="Fork it").click()
        await page.get_by_text("Forked into a new job").wait_for()
        fork = next(each for each in await app.find_jobs() if each.forked_from == handle.id)
        given = {"iban": iban, "usd": 1398, "rows": rows}
        assert json.loads(fork.input) == given
    assert there.wrong == []


async def test_an_answer_that_comes_too_late_is_told_kindly(app: App) -> None:
    async with app.running(), visit(app) as there:
        handle = await app.submit(app.jobs["offer"](900), user="kim")
        await handle.until(JobState.WAITING)
        (asked,) = await app.approvals()
        await look_at(there, "/inbox")
        await there.page.get_by_role("button", name="Reject").click()
        await app.decide(asked, "approve", by=OneGate("bob").person)
        dialog = there.page.get_by_role("dialog")
        await dialog.get_by_label("Why, for the log").fill("too much")
        await dialog.get_by_role("button", name="Reject it").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("The list shows how it is now.")


async def test_an_effect_in_doubt_is_settled(app: App) -> None:
    async with app.running(), visit(app) as there:
        handle = await app.submit(app.jobs["checkout"]("12A"))
        await handle.until(JobState.NEEDS_ATTENTION)
        await look_at(there, "/effects")
        await there.page.get_by_role("button", name="It happened").click()
        dialog = there.page.get_by_role("dialog")
        await dialog.get_by_label("What the receiver answered").fill('"ch_7"')
        await dialog.get_by_label("How do you know?").fill("seen at the bank")
        await dialog.get_by_role("button", name="It happened").click()
        assert await handle.result() == "ch_7"
        await expect(there.page.get_by_text("Every effect is known")).to_be_visible()
    assert there.wrong == []


async def test_failed_jobs_are_chosen_and_retried_after_a_dry_run(app: App) -> None:
    async with app.running(), visit(app) as there:
        ids = await samples(app)
        page = await there.open("/jobs?q=state:failed")
        await page.get_by_role("checkbox").check()
        await page.get_by_role("button", name="Retry…").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("button", name="Retry 1 job").click()
        await expect(dialog).to_contain_text("Retry: 1 done")
        events = await (await app.handle(ids["fail"])).events()
        assert "retry.asked" in {each.type for each in events}
    assert there.wrong == []


async def test_two_jobs_are_compared_side_by_side(app: App) -> None:
    async with app.running(), visit(app) as there:
        for item in ("piano", "harp"):
            handle = await app.submit(app.jobs["order"](item), key=item)
            await handle.until(JobState.COMPENSATED)
        page = await there.open("/jobs")
        for item in ("piano", "harp"):
            await page.get_by_role("row").filter(has_text=item).get_by_role("checkbox").check()
        await page.keyboard.press("c")
        await page.wait_for_url("**/compare?*")
        await expect(page.locator(".says")).to_contain_text("Both compensated")
        await expect(page.locator(".diff-gone").first).to_contain_text("piano")
        await expect(page.locator(".diff-new").first).to_contain_text("harp")
        await page.get_by_role("button", name="pay#1", exact=False).first.click()
        await expect(page.locator(".step-diff")).to_contain_text("pay#1")
        await expect(
            page.locator(".step-diff").get_by_text("The same on both sides")
        ).to_be_visible()
    assert there.wrong == []


async def test_the_children_of_a_job_are_a_tree(app: App) -> None:
    async with app.running(), visit(app) as there:
        handle = await app.submit(app.jobs["family"](2))
        await handle.result()
        page = await there.open(f"/jobs/{handle.id}?tab=children")
        rows = page.locator(".branch")
        await expect(rows).to_have_count(7)  # itself, two children, and two of each
        await page.get_by_role("button", name=re.compile("^Close family")).first.click()
        await expect(rows).to_have_count(1)
    assert there.wrong == []


async def test_several_approvals_are_answered_at_once_but_never_one_of_high_risk(app: App) -> None:
    async with app.running(), visit(app) as there:
        low = [await app.submit(app.jobs["offer"](usd), user="kim") for usd in (1, 2)]
        high = await app.submit(app.jobs["offer"](900_000, "high"), user="kim")
        final = await app.submit(app.jobs["wipe"]("disk 1"), user="kim")
        for handle in (*low, high, final):
            await handle.until(JobState.WAITING)
        page = await there.open("/inbox")
        await page.get_by_label("Select all of low risk").check()
        await expect(page.get_by_label("Select Send this offer?")).to_have_count(2)
        sent: list[dict[str, str]] = []
        page.on("request", lambda it: sent.append(it.headers) if it.method == "POST" else None)
        await page.get_by_role("button", name="Approve 2 actions").click()
        await page.get_by_role("dialog").get_by_role("button", name="Approve 2 actions").click()
        assert [await handle.result() for handle in low] == ["sent by ann"] * 2
        assert len({each["idempotency-key"] for each in sent}) == 2
        assert await page.locator("link[rel=icon]").get_attribute("href")
        await expect(page.get_by_role("heading", name="Send this offer?")).to_have_count(1)
        assert {(await each.job()).state for each in (high, final)} == {JobState.WAITING}
    assert there.wrong == []


async def test_the_tab_has_the_number_of_waiting_approvals_on_it(app: App) -> None:
    async with app.running(), visit(app) as there:
        page = await there.open("/jobs")
        await there.live()
        icon = page.locator("link[rel=icon]")
        await expect(icon).to_have_attribute("href", re.compile(r"/assets/icon-"))
        handle = await app.submit(app.jobs["offer"](900), user="kim")
        await handle.until(JobState.WAITING)
        await expect(page).to_have_title(re.compile(r"^\(1\) "))
        await expect(icon).to_have_attribute("href", re.compile(r"^data:image/svg\+xml,.*%3E1%3C"))
    assert there.wrong == []


async def test_a_viewer_sees_no_buttons_that_change_anything(app: App) -> None:
    gate = OneGate("vic", frozenset({Role.VIEWER}))
    async with app.running(), visit(app, gate) as there:
        ids = await samples(app)
        await look_at(there, f"/jobs/{ids['checkout']}?tab=effects")
        await expect(there.page.get_by_text("Nobody knows whether").first).to_be_visible()
        for name in ("Retry", "Resume", "Cancel", "It happened", "Fork", "Undo…"):
            await expect(there.page.get_by_role("button", name=name)).to_have_count(0)
        await look_at(there, "/inbox")
        await expect(there.page.get_by_role("button", name="Approve")).to_have_count(0)
        await expect(there.page.get_by_role("link", name="Tokens")).to_have_count(0)


# Live


async def test_a_change_is_seen_without_a_reload(app: App) -> None:
    async with visit(app) as there:
        await look_at(there, "/jobs")
        await there.live()
        await there.page.evaluate("window.same = true")
        handle = await app.submit(app.jobs["migrate"](2), key="live")
        row = there.page.get_by_role("row").filter(has_text="live")
        await expect(row).to_contain_text("pending")
        async with app.running():
            await handle.result()
            await expect(row).to_contain_text("completed")
        assert await there.page.evaluate("window.same") is True
    assert there.wrong == []


async def test_a_killed_worker_shows_and_another_one_goes_on(app: App, tmp_path: Path) -> None:
    handle = await app.submit(app.jobs["copy"]())
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.page_app", app.url
    )
    async with visit(app) as there:
        await there.open(f"/jobs/{handle.id}")
        await there.page.get_by_text("the first quarter").wait_for()
        worker.kill()
        await worker.wait()
        await expect(there.page.locator(".story")).to_contain_text("is silent")
        async with app.running():
            assert await handle.result() == "copied"
            await expect(there.page.locator(".job-head")).to_contain_text("completed")
        await there.page.get_by_role("tab", name="Events").click()
        await expect(there.page.get_by_text("lease.expired")).to_be_visible()
    assert there.wrong == []


async def test_new_jobs_wait_until_the_reader_asks_for_them(app: App) -> None:
    store = await app.store()
    await store.submit([_plain_job(number) for number in range(300)], "kim")
    async with visit(app) as there:
        page = await there.open("/jobs")
        await there.live()
        rows = page.locator(".rows .row:not(.heads)")
        await expect(rows.first).to_be_visible()
        await page.evaluate("scrollTo(0, 2000)")
        seen = page.locator(".rows .key", has_text="k230")
        place = await seen.bounding_box()
        for number in range(3):
            await app.submit(app.jobs["migrate"](1), key=f"fresh {number}")
        banner = page.get_by_role("button", name="3 new")
        await expect(banner).to_be_visible()
        assert await seen.bounding_box() == place  # nothing has moved under the reader's eyes
        await banner.click()
        await expect(rows.first).to_contain_text("fresh 2")
        await expect(banner).to_have_count(0)
    assert there.wrong == []


async def test_a_browser_without_shared_workers_is_live_too(app: App) -> None:
    gate = OneGate()
    async with visit(app, gate) as there:
        await there.page.add_init_script("delete window.SharedWorker")
        page = await there.open("/jobs")
        assert await page.evaluate("typeof SharedWorker") == "undefined"
        await there.live()
        await app.submit(app.jobs["migrate"](2), key="heard")
        await expect(page.get_by_role("row").filter(has_text="heard")).to_be_visible()
    assert gate.streams == 1
    assert there.wrong == []


async def test_many_tabs_have_one_stream(app: App) -> None:
    gate = OneGate()
    async with served(app, gate) as site, chromium() as browser:
        context = await browser.new_context()
        tabs = [Visit(await context.new_page(), site) for _ in range(8)]  # a host may have six
        for tab in tabs:
            await look_at(tab, "/jobs")
            await tab.live()
        assert [tab.wrong for tab in tabs] == [[]] * 8
    assert gate.streams == 1


# Much of it


async def test_ten_thousand_steps_are_drawn_a_few_rows_at_a_time(
    app: App, record_property: Callable[[str, object], None]
) -> None:
    store = await app.store()
    await store.submit([new_job("a", name="steps")], "kim")
    claim = await claim_one(store)
    entries = [
        entry(seq, id=f"load#{seq}", name="load", started_at=claim.now, ended_at=claim.now + 1)
        for seq in range(10_000)
    ]
    done = JobChange(state=JobState.COMPLETED, release=True)
    await store.write(write_of(claim, *entries, job=done))
    async with visit(app) as there:
        await there.open("/jobs/a?view=waterfall")
        await (
            there.page.get_by_label("10,001 rows of the timeline")
            .or_(there.page.get_by_label("10,000 rows of the timeline"))
            .wait_for()
        )
        shown = await there.page.locator(".timeline-row").count()
        assert 10 <= shown <= 60
        paint = await there.page.evaluate(
            "performance.getEntriesByName('timeline')[0]?.startTime ?? performance.now()"
        )
        record_property("first_paint_ms", round(paint))
        box = there.page.locator(".timeline .virtual-box")
        await box.evaluate("it => { it.scrollTop = it.scrollHeight }")
        await expect(there.page.locator(".timeline-row").last).to_contain_text("load#9999")
        assert await there.page.locator(".timeline-row").count() <= 60
    assert there.wrong == []


async def test_a_hundred_thousand_jobs_can_be_scrolled_and_searched(app: App) -> None:
    store = await app.store()
    for first in range(0, 100_000, 10_000):
        await store.submit([_plain_job(number) for number in range(first, first + 10_000)], "kim")
    async with visit(app) as there:
        page = await there.open("/jobs")
        await expect(page.locator(".chip").first).to_contain_text("100,000")
        rows = page.locator(".rows .row:not(.heads)")
        await expect(rows.first).to_be_visible()
        await page.wait_for_function(SCROLLED)
        assert await rows.count() <= 80
        await page.get_by_role("combobox", name="Query").fill("key:k99321")
        await expect(rows).to_have_count(1)
    assert there.wrong == []


# Scrolls to the end again and again, until the thousandth job is there.
SCROLLED = """() => {
    scrollTo(0, document.body.scrollHeight)
    const last = [...document.querySelectorAll(".rows .key")].at(-1)
    return last && Number(last.textContent.slice(1)) < 99000
}"""


def _plain_job(number: int) -> NewJob:
    return new_job(f"j{number:06}", key=f"k{number}")


async def test_a_large_payload_is_loaded_only_when_somebody_asks(app: App) -> None:
    async with app.running(), visit(app) as there:
        handle = await app.submit(app.jobs["large"](SAMPLES["large"][0][0]))
        await handle.result()
        page = await there.open(f"/jobs/{handle.id}?step=make%231")
        await page.get_by_role("button", name=re.compile("^Load")).click()
        await page.get_by_label("Search in the payload").fill("line 39999 ")
        await expect(page.locator(".line.hit")).to_contain_text("line 39999 of the payload")
        assert await page.locator(".line").count() < 100
    assert there.wrong == []


@pytest.mark.parametrize(
    "large",
    [
        {"bytes": 1, "preview": "x", "href": "javascript:document.title='taken'"},
        {"bytes": 1, "preview": "x", "href": "https://elsewhere.test/"},
        7,
        None,
    ],
    ids=str,
)
async def test_what_a_job_stores_is_never_taken_for_our_own_reference(
    app: App, large: object
) -> None:
    forged: dict[str, object] = {"$large": large}

    @app.step
    async def keep(value: dict[str, object]) -> dict[str, object]:
        return value

    @app.job
    async def forges(value: dict[str, object]) -> dict[str, object]:
        return await keep(value)

    async with app.running(), visit(app) as there:
        handle = await app.submit(forges(forged))
        assert await handle.result() == forged
        for where in ("", "?tab=journal&step=keep%231", "?tab=raw"):
            page = await there.open(f"/jobs/{handle.id}{where}")
            await expect(page.get_by_text('"$large"').first).to_be_visible()
            await expect(page.get_by_role("button", name="Fork").first).to_be_visible()
            await expect(page.get_by_role("button", name=re.compile("^Load"))).to_have_count(0)
            hrefs = await page.eval_on_selector_all("a", "all => all.map(each => each.href)")
            assert [each for each in hrefs if not each.startswith(there.site)] == []
    assert there.wrong == []


async def test_a_page_that_nobody_uses_says_so_with_what_it_reads(app: App) -> None:
    async with visit(app) as there:
        page = there.page
        await page.clock.install()
        await look_at(there, "/jobs")
        alone: list[bool] = []
        page.on("request", lambda each: alone.append("x-unattended" in each.headers))
        await page.clock.run_for(30_000)
        while not alone:
            await page.clock.run_for(1_000)
        assert not any(alone)
        await page.clock.fast_forward(60_000)
        while not any(alone):
            await page.clock.run_for(1_000)
        await page.keyboard.press("Shift")
        alone.clear()
        while not alone:
            await page.clock.run_for(1_000)
        assert not any(alone)


# Keyboard


async def test_everything_is_reached_by_keyboard(app: App) -> None:
    async with app.running(), visit(app) as there:
        ids = await samples(app)
        await look_at(there, "/jobs")
        page, keys = there.page, there.page.keyboard
        await page.locator(".rows .row").nth(1).wait_for()
        await keys.press("?")
        await expect(page.get_by_role("dialog")).to_contain_text("Go to Approvals")
        await keys.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await keys.press("j")
        await keys.press("j")
        await keys.press("x")
        await expect(page.get_by_text("1 job selected")).to_be_visible()
        await keys.press("o")
        await page.wait_for_url(f"**/jobs/{ids['research']}")
        await keys.press("g")
        await keys.press("a")
        await page.wait_for_url("**/inbox")
        await keys.press("Control+k")
        await expect(page.get_by_role("combobox", name="Search or run")).to_be_focused()
        await keys.type("Worke")
        await keys.press("Enter")
        await page.wait_for_url("**/workers")
        await keys.press("g")
        await keys.press("j")
        await keys.press("/")
        await keys.type("name:migrate ")
        await page.wait_for_url("**/jobs?q=name%3Amigrate")
    assert there.wrong == []


async def test_text_of_a_job_is_never_html(app: App) -> None:
    async with app.running(), visit(app) as there:
        ids = await samples(app)
        await look_at(there, f"/jobs/{ids['fail']}")
        await expect(there.page.locator("h1")).to_contain_text("<b>1</b>")
        assert await there.page.locator("h1 b").count() == 0


async def test_what_an_undo_has_left_and_that_a_job_is_stuck_are_told_as_such(app: App) -> None:
    @app.step
    async def book(ctx: StepContext) -> None: ...

    @book.compensate(retry=Retry(attempts=1))
    async def unbook(ctx: StepContext, output: None) -> None:
        raise ValueError("the hotel is away")

    @app.job(on_undo_failure="continue")
    async def trip(ctx: JobContext) -> None:
        await book()
        raise ValueError("no visa")

    _ = unbook
    async with visit(app) as there:
        async with app.running():
            handle = await app.submit(trip())
            await handle.wait("60s")
        await look_at(there, f"/jobs/{handle.id}?tab=undo")
        page = there.page
        await expect(page.get_by_text("What it did was undone, except for 1 thing")).to_be_visible()
        await expect(page.get_by_text("The undo has ended; 1 item could not")).to_be_visible()
        await expect(page.get_by_role("button", name="Try again what failed")).to_be_visible()
        await expect(page.get_by_text("what was done stays done")).to_have_count(0)
        store = await app.store()
        await store.submit([new_job("slow")])
        claim = await claim_one(store)
        await store.write(write_of(claim, stalled=True))
        await look_at(there, "/jobs?q=state:stuck")
        row = page.get_by_role("row", name=re.compile("stuck"))
        await expect(row).to_have_count(1)
        await look_at(there, "/charts")
        await expect(page.get_by_role("link", name="1", exact=True)).to_be_visible()
    assert there.wrong == []
