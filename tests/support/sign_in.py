"""Sign in to a page of this machine by a link, as a browser does."""

from urllib.parse import parse_qs, urlsplit

import httpx


def signed_in(link: str) -> httpx.Client:
    """Return a client that has used a link, with what it needs to change things."""
    parts = urlsplit(link)
    base = f"{parts.scheme}://{parts.netloc}"
    browser = httpx.Client(base_url=base, headers={"origin": base})
    answer = use(browser, link)
    assert answer.status_code == 303, answer.text
    browser.headers["x-csrf-token"] = browser.get("/api/v1/session").json()["csrf"]
    return browser


def use(browser: httpx.Client, link: str) -> httpx.Response:
    """Press the button of the page that a link leads to."""
    (secret,) = parse_qs(urlsplit(link).fragment)["link"]
    return browser.post("/login", data={"link": secret})
