"""The pages that mails link to, and the endpoint for presses of buttons in Slack.

They need the extras `mail` and `slack`, so this module is imported only if they are asked for.
"""

from functools import partial

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from perdure.jobs.approval import APPROVER, Person
from perdure.notify.links import LinkTokens
from perdure.notify.people import People
from perdure.notify.slack import SlackSettings
from perdure.notify.web import PATHS, SLACK_PATH, ApprovalWeb, LinkPages, Scope
from perdure.web.access.gate import Access
from perdure.web.access.principal import Permission
from perdure.web.dispatch import AccessGate, Backend


def approval_routes(
    backend: Backend,
    people: People | None,
    links: LinkTokens | None,
    slack: SlackSettings | None,
    origin: str | None,
) -> list[Route]:
    """Return the routes of what is given.

    Args:
        backend: The app or client, and its gate.
        people: Who is who; None: as the policy says.
        links: Checks the tokens of links; None: there are no pages for them.
        slack: Which Slack apps and workspaces to trust; None: there is no endpoint for it.
        origin: Where this is, as browsers name it; None: as each request says.
    """
    store = backend.caller.approval_store
    known = people or backend.caller.policy.people
    web = ApprovalWeb(
        store,
        known,
        None if links is None else LinkPages(store, known, links),
        slack=slack,
        authenticate=partial(recently_signed_in, backend),
        origin=origin,
    )
    web.body_timeout = backend.limits.body_timeout
    paths = [*(PATHS if links is not None else ()), *([SLACK_PATH] if slack is not None else [])]
    return [Route(path, _Admitted(web, backend.gate)) for path in paths]


class _Admitted:
    """An ASGI app that is reached only by our own names."""

    def __init__(self, app: ASGIApp, gate: AccessGate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and isinstance(self._gate, Access):
            self._gate.admit(Request(scope))
        await self._app(scope, receive, send)


async def recently_signed_in(backend: Backend, scope: Scope) -> Person | None:
    """Return who has signed in lately: HIGH risks need that, beside the link and its code."""
    # As if it were only read: the link and its code protect the form, not a token of the page.
    principal = await backend.gate.authenticate(Request({**scope, "method": "GET"}))
    if principal is None or principal.tenant is None or principal.kind != "person":
        return None
    at = principal.signed_in_at
    if at is None or await backend.caller.approval_store.now() - at > backend.recent:
        return None
    may = principal.may(Permission.APPROVALS_DECIDE)
    roles = frozenset({APPROVER}) if may else frozenset[str]()
    return Person(id=principal.id, tenant=principal.tenant, roles=roles)
