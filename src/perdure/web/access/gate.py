"""Who asks: by a token, by a session, or as your own code says.

    app.asgi(access=Access(authenticate=my_hook, settings=AccessSettings(…)))

Without a credential nobody gets in; there is no anonymous mode. In order: the name by which we were
reached, the rate of the address, the credential, where a change comes from, and the rates of the
credential and of its tenant.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

from starlette.requests import Request
from starlette.routing import Route

from perdure.base.clock import Clock, SystemClock
from perdure.base.errors import RequestRefused, StoreError
from perdure.engine.caller import Caller
from perdure.jobs.audit import INSTALLATION, AuditDraft
from perdure.jobs.credential import EXACT_TO
from perdure.store.store import Store
from perdure.web.access.principal import Principal
from perdure.web.access.rates import Rate, Rates, address_key
from perdure.web.access.secret_text import (
    LONGEST,
    TOKEN_PREFIX,
    csrf_token,
    hash_secret,
    same_secret,
)
from perdure.web.access.sessions import OpenSession, find_session, with_address
from perdure.web.access.settings import AccessSettings
from perdure.web.access.site import CSRF_HEADER, SAFE, check_csrf, check_host, check_site
from perdure.web.access.tokens import principal_of

# Returns who asks, by your own cookies or headers; None: nobody that you know.
Authenticate: TypeAlias = Callable[[Request], Awaitable[Principal | None]]

_NOTED_FAILURES: Final = Rate(1 / 60, 20)  # failed sign-ins in the audit log
_COUNTED: Final = "perdure.counted"  # where the scope of a request says that it was
CSRF_SCOPE: Final = "perdure.csrf"  # where the token of the session is, for the answer


class LoginPages(Protocol):
    """A further way to sign in: its routes, below `/login`, and the path at which it begins."""

    @property
    def begins(self) -> str: ...

    def routes(self, access: "Access", /) -> list[Route]: ...


class Access:
    """Lets principals in."""

    def __init__(
        self,
        *,
        authenticate: Authenticate | None = None,
        settings: AccessSettings | None = None,
        login: "LoginPages | None" = None,
        clock: Clock | None = None,
    ) -> None:
        """Describe who gets in.

        Args:
            authenticate: Your own way to tell who asks; tokens and sessions work beside it. What it
                lets in by a cookie is checked for requests from other sites, as sessions are.
            settings: How long sessions last, and how often anybody may ask.
            login: A further way to sign in: see `perdure.web.oidc_login`.
            clock: For tests.
        """
        self.settings = settings or AccessSettings()
        self.login = login
        self._hook = authenticate
        clock = clock or SystemClock()
        self._per_address = Rates(self.settings.per_address, clock)
        self._per_credential = Rates(self.settings.per_credential, clock)
        self._per_tenant = Rates(self.settings.per_tenant, clock)
        self._sign_ins = Rates(self.settings.sign_ins, clock)
        self._noted_failures = Rates(_NOTED_FAILURES, clock)
        self._unnoted_failures = 0
        self._store: Store | None = None
        self.recheck: Callable[[], None] = lambda: None

    def bind(self, caller: Caller, recheck: Callable[[], None] = lambda: None) -> None:
        """Use the tokens and sessions of the store of an app or client.

        Args:
            caller: The app or client.
            recheck: Checks soon whether those who follow streams still may.
        """
        self._store = caller.verbs
        self.recheck = recheck

    @property
    def store(self) -> Store:
        """Where tokens and sessions are.

        Raises:
            StoreError: It was not bound to an app.
        """
        if self._store is None:
            raise StoreError("this access belongs to no app: pass it to app.asgi(access=…)")
        return self._store

    def admit(self, request: Request) -> None:
        """Check what needs no credential: the name by which we were reached, and the rate.

        Raises:
            RequestRefused: It is another name, or too often.
        """
        check_host(request, self.settings.hosts)
        self.count(request)

    def count(self, request: Request) -> None:
        """Check the rate of the address that a request comes from; each request counts once.

        Raises:
            RequestRefused: Too often.
        """
        if not request.scope.get(_COUNTED):
            self._per_address.take(_address(request), "address")
            request.scope[_COUNTED] = True

    def count_sign_in(self, request: Request) -> None:
        """Check how often an address tries to sign in.

        Raises:
            RequestRefused: Too often.
        """
        self._sign_ins.take(_address(request), "address")

    async def note_failed_sign_in(self, request: Request, way: str) -> None:
        """Audit an attempt to sign in that failed, unless too many did lately.

        Those that are left out are counted in the next entry, so that nobody can fill the log.
        """
        try:
            self._noted_failures.take("all", "kind")
        except RequestRefused:
            self._unnoted_failures += 1
            return
        unnoted, self._unnoted_failures = self._unnoted_failures, 0
        draft = AuditDraft(
            actor="",
            action="sign_in_failed",
            tenant=INSTALLATION,
            data={"by": way, **({"left_out": unnoted} if unnoted else {})},
            address=request.client.host if request.client else "",
        )
        await self.store.audit(draft)

    async def authenticate(self, request: Request) -> Principal | None:
        """Return who asks; None if nobody is known by what they sent.

        Raises:
            RequestRefused: Too many requests.
            AccessDenied: A change that may come from another site.
        """
        self.admit(request)
        principal = await self._principal(request)
        if principal is None:
            return None
        self._per_credential.take(principal.credential or principal.id, "credential")
        if principal.tenant is not None:
            self._per_tenant.take(principal.tenant, "tenant")
        return with_address(principal, request)

    async def _principal(self, request: Request) -> Principal | None:
        secret = bearer(request)
        if secret is not None:
            return await self.by_token(secret)
        if self._hook is not None and (principal := await self._hook(request)) is not None:
            if request.method not in SAFE:
                check_site(request, self.settings.origin, needed=False)
            return principal
        session = await self.session(request)
        return None if session is None else session.principal

    async def by_token(self, secret: str) -> Principal | None:
        """Return the principal of a token; None if it is unknown, revoked or expired."""
        if len(secret) > LONGEST:
            return None
        wanted = hash_secret(secret)
        found = await self.store.token_by_hash(wanted)
        if found is None:
            return None
        row, now = found
        if not same_secret(row.hash, wanted) or not row.is_valid(now):
            return None
        if row.last_used_at is None or now - row.last_used_at >= EXACT_TO:
            await self.store.use_token(row.id)
        return principal_of(row)

    async def session(self, request: Request, given: str | None = None) -> OpenSession | None:
        """Return who is signed in; what changes something must come from our own page.

        Args:
            request: The request.
            given: The token of a form; None: it is in the header.

        Raises:
            AccessDenied: It may come from another site.
        """
        session = await find_session(self.store, request, self.settings)
        if session is None:
            return None
        if request.method not in SAFE:
            check_site(request, self.settings.origin)
            check_csrf(session.secret, given or request.headers.get(CSRF_HEADER))
        request.scope[CSRF_SCOPE] = csrf_token(session.secret)
        return session


def _address(request: Request) -> str:
    return address_key(request.client.host if request.client else "")


def bearer(request: Request) -> str | None:
    """Return the token of ours that a request has in `Authorization`; None: it has none."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    value = value.strip()
    return value if scheme.lower() == "bearer" and value.startswith(TOKEN_PREFIX) else None
