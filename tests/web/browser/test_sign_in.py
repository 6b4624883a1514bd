"""Signing in by a link, in a real browser, at a real address."""

import pytest

from perdure import App
from perdure.web.access.gate import Access
from perdure.web.access.sessions import local_operator, new_sign_in_link

pytest.importorskip("playwright", reason="needs playwright: pip install perdure[browser]")

from tests.support.browser import CHROMIUM, chromium, served

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH"),
    pytest.mark.once,
    pytest.mark.timeout(300),  # a browser needs its time on a busy machine
]


async def test_a_person_signs_in_by_a_link_and_sees_the_page(app: App) -> None:
    async with served(app, Access()) as url, chromium() as browser:
        link = await new_sign_in_link(app.verbs, local_operator())
        page = await browser.new_page()
        await page.goto(f"{url}/login?link={link}&next=//elsewhere.test/")
        await page.click("button")
        await page.get_by_text("local operator").first.wait_for(state="attached")
        assert page.url.startswith(url)
