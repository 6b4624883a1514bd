"""The settings of access over HTTP."""

from perdure.base.checked import Checked
from perdure.web.access.rates import Rate
from perdure.web.access.tenant import RECENT


class AccessSettings(Checked, frozen=True, kw_only=True):
    """How long people stay signed in, and how often anybody may ask.

    Attributes:
        idle: Seconds without a request of the person after which a session ends.
        absolute: Seconds after which a session ends, whatever happens.
        recent: Seconds after a sign-in within which a person may decide about HIGH risks.
        origin: Where the dashboard is, as browsers name it: "https://jobs.example.com". None: what
            the request says, which is right unless a proxy changes the header `Host`.
        hosts: The names by which it may be reached; None: any. A server on loopback should name its
            own, so that no page of another site can reach it by a name that leads here.
        per_address: Requests of one address; an IPv6 network counts as one.
        per_credential: Requests of one token, session or principal.
        per_tenant: Requests of all principals of one tenant.
        sign_ins: Attempts of one address to sign in.
    """

    idle: float = 3600.0
    absolute: float = 12 * 3600.0
    recent: float = RECENT
    origin: str | None = None
    hosts: frozenset[str] | None = None
    per_address: Rate = Rate(100.0, 400)
    per_credential: Rate = Rate(50.0, 200)
    per_tenant: Rate = Rate(200.0, 800)
    sign_ins: Rate = Rate(1 / 6, 10)
