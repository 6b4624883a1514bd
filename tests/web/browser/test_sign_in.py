"""Signing in and out, and again, in a real browser, at a real address."""

import pytest
from starlette.requests import Request

from perdure import App
from perdure.cli.local_page import new_link
from perdure.jobs.state import JobState
from perdure.web.access.gate import Access
from perdure.web.access.principal import Role
from perdure.web.access.sessions import local_operator
from perdure.web.access.tokens import NewToken, create_token
from tests.support.store import sql

pytest.importorskip("playwright", reason="needs playwright: pip install perdure[browser]")

from playwright.async_api import expect

from tests.support.browser import CHROMIUM, Visit, chromium, served

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH"),
    pytest.mark.once,
    pytest.mark.timeout(300),  # a browser needs its time on a busy machine
]


class Logged(Access):
    """Writes down the addresses that are asked for, as a proxy does."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def admit(self, request: Request) -> None:
        self.log.append(str(request.url))
        super().admit(request)


async def test_a_person_signs_in_by_a_link_whose_secret_reaches_no_log(app: App) -> None:
    access = Logged()
    async with served(app, access) as url, chromium() as browser:
        page = await browser.new_page()
        path = await new_link(app)
        secret = path.rpartition("link=")[2]
        await page.goto(f"{url}/login")
        await page.goto(url + path.replace("#", "?next=//elsewhere.test/#"))
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_text("local operator").first.wait_for(state="attached")
        assert page.url.startswith(url)
    assert [each for each in access.log if "/login" in each]
    assert [each for each in access.log if secret in each] == []


async def test_a_link_that_is_pasted_into_the_open_sign_in_page_is_taken(app: App) -> None:
    async with served(app, Access()) as url, chromium() as browser:
        page = await browser.new_page()
        await page.goto(f"{url}/login")
        await page.goto(url + await new_link(app))  # only what is behind the # differs
        await expect(page.get_by_label("Your token")).to_have_count(0)
        assert page.url == f"{url}/login"  # nor is it in the history of the browser
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_text("local operator").first.wait_for(state="attached")


async def test_a_decision_about_a_high_risk_goes_on_after_another_sign_in(app: App) -> None:
    roles = (Role.APPROVER, Role.VIEWER)
    asked = NewToken(name="ann's", roles=roles, kind="person", principal="ann")
    token = await create_token(app.verbs, asked, "default", local_operator())
    async with app.running(), served(app, Access()) as url, chromium() as browser:
        handle = await app.submit(app.jobs["offer"](900_000, "high"), user="kim")
        await handle.until(JobState.WAITING)
        there = Visit(await browser.new_page(), url)
        page = there.page
        await page.goto(f"{url}/inbox")
        await page.wait_for_url("**/login?next=*")  # nobody gets in without a credential
        for given in ("pdr_mistaken", token.secret):
            await page.get_by_label("Your token").fill(given)
            await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("heading", name="Send this offer?").wait_for()
        sql(app.url, "UPDATE session SET created_at = created_at - 3600")  # an hour ago
        await page.get_by_role("button", name="Approve").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("button", name="Approve").click()
        await page.wait_for_url("**/login?*again=1")
        await page.get_by_text("needs a recent sign-in").wait_for()
        await page.get_by_label("Your token").fill(token.secret)
        await page.get_by_role("button", name="Sign in").click()
        await dialog.get_by_role("button", name="Approve").click()  # of the dialog that was open
        assert await handle.result() == "sent by ann"
        await page.get_by_text("Approved: the job continues").wait_for()
    unauthorised = [each for each in there.wrong if " 401 " not in each and " 403 " not in each]
    assert unauthorised == []


@pytest.mark.parametrize("item", ["Sign out", "Sign out everywhere"])
async def test_a_person_signs_out(app: App, item: str) -> None:
    async with served(app, Access()) as url, chromium() as browser:
        page = await browser.new_page()
        await page.goto(url + (await new_link(app)).replace("#", "?next=/workers#"))
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("button", name="local operator").click()
        await page.get_by_role("menuitem", name=item, exact=True).click()
        await page.wait_for_url("**/login")
        await page.goto(f"{url}/workers")
        await page.wait_for_url("**/login?next=*")
        await expect(page.get_by_label("Your token")).to_be_visible()
