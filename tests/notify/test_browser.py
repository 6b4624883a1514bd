"""The page of a link in a real browser: who only looks, follows and presses decides nothing."""

import shutil
from collections.abc import AsyncIterator

import pytest

from perdure.jobs.approval import ApprovalState
from perdure.notify.links import LinkTokens
from perdure.notify.web import ApprovalWeb, LinkPages
from tests.notify.test_mail import KEY, Invitation, invite
from tests.support.approvals import ASKED, MemoryStore, staff
from tests.support.servers import asgi

pytest.importorskip("playwright", reason="needs playwright: pip install perdure[browser]")

from playwright.async_api import Page, async_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
# It speaks to nobody but us, and its own walls are no matter of this test.
QUIET = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    """A page of a browser that runs scripts."""
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        try:
            yield await browser.new_page()
        finally:
            await browser.close()


def office(store: MemoryStore) -> ApprovalWeb:
    return ApprovalWeb(store, staff(), LinkPages(store, staff(), LinkTokens((KEY,))))


async def opened(page: Page, site: str, ann: Invitation) -> None:
    """Follow the link of the mail, until the script has led to what it is about."""
    await page.goto(f"{site}/approvals/link#{ann.token}")
    await page.get_by_role("heading", name="pay the invoice").wait_for()


async def test_a_scanner_that_runs_scripts_follows_links_and_presses_buttons_changes_nothing(
    page: Page,
) -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    links = dict(store.links)
    async with asgi(office(store)) as site:
        for button in ("Approve", "Reject"):
            await opened(page, site, ann)
            assert ann.token not in page.url  # neither in its history, nor in a log
            for link in await page.locator("a[href]").all():
                await link.click()
            await page.get_by_role("button", name=button).click()  # the browser asks for the code
            await page.evaluate("document.forms[0].noValidate = true")
            await page.get_by_role("button", name=button).click()
            await page.get_by_role("alert").wait_for()
    assert store.only == ASKED
    assert store.links == links  # not even a wrong code was counted


async def test_a_person_who_types_the_code_and_presses_the_button_decides(
    page: Page,
) -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    async with asgi(office(store)) as site:
        await opened(page, site, ann)
        await page.get_by_label("The code of the mail").fill("1234")
        await page.get_by_role("button", name="Approve").click()
        assert await page.get_by_role("alert").inner_text() == "This is not the code from the mail."
        assert store.only == ASKED
        await page.get_by_label("The code of the mail").fill(ann.code)
        await page.get_by_label("Why, for the log").fill("it is due")
        await page.get_by_role("button", name="Approve").click()
        await page.get_by_text("Approved · ann (approve) · it is due").wait_for()
        await page.goto(f"{site}/approvals/link#{ann.token}")
        await page.get_by_text("this link was already used").wait_for()
    assert store.only.state is ApprovalState.APPROVED
    assert [(each.person, each.channel) for each in store.only.decisions] == [("ann", "mail")]


async def test_the_page_obeys_its_own_policy(page: Page) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    async with asgi(office(store)) as site:
        await opened(page, site, ann)
        style = "getComputedStyle(document.querySelector('main')).borderRadius"
        assert await page.evaluate(style) == "12px"  # the style sheet is there
    assert [text for text in said if "Security Policy" in text] == []
