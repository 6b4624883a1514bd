"""Webhooks: a signed POST to a URL that somebody has configured.

It is signed as the Standard Webhooks specification says, so that its libraries can verify it: an
HMAC over id, time and body, with the same id at every retry.

The URL may come from somebody who should not reach our own network. So a host name is resolved
once, all its addresses are checked, and the connection goes to one of the checked addresses: a name
that is resolved twice can lead to two places. Redirects are not followed.
"""

import asyncio
import base64
import hashlib
import hmac
import socket
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from perdure.base.checked import Checked
from perdure.base.extra import extra
from perdure.base.secret import Secret
from perdure.jobs.approval import Approval
from perdure.jobs.outbox import Notice
from perdure.jobs.redaction import for_people
from perdure.notify.message import before_edits, outcome_of
from perdure.notify.people import ApprovalStore

with extra("webhook", "a webhook"):
    import httpcore

# Addresses

Address: TypeAlias = IPv4Address | IPv6Address

# Our own list, since `is_global` differs from one Python to the next: IANA's registries of
# special-purpose addresses, including the few that are public. None of them is a web server.
_SPECIAL_4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by carriers (CGNAT)
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # not IANA's: the host of virtual machines in Azure
            "169.254.0.0/16",  # link-local: cloud metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_UNICAST_6: Final = IPv6Network("2000::/3")  # all else is special
_SPECIAL_6: Final = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks, AMT, AS112 …
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, which embeds IPv4 addresses
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64: Final = IPv6Network("64:ff9b::/96")  # the last 32 bits are an IPv4 address


class Forbidden(OSError):
    """The host resolves to an address that we do not connect to."""


class Allowed:
    """The addresses that may be connected to: public ones, and those of listed networks."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [ip_network(network) for network in networks]

    def allows(self, address: Address) -> bool:
        """Whether an address, or the one embedded in it, may be connected to."""
        inner = _embedded(address)
        named = self._networks
        if any(_is_in(each, network) for each in (address, inner) for network in named):
            return True
        return _is_public(inner)

    def check(self, host: str, addresses: Iterable[str]) -> list[str]:
        """Return the addresses of a host.

        Raises:
            Forbidden: One of them is not allowed, so the name is not trusted at all.
        """
        found = [address.split("%")[0] for address in addresses]
        bad = [address for address in found if not self.allows(ip_address(address))]
        if bad or not found:
            raise Forbidden(
                f"{host} resolves to {', '.join(bad) or 'nothing'}, which is not public"
            )
        return found


def _is_in(address: Address, network: Any) -> bool:
    return address.version == network.version and address in network


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_4)
    return address in _UNICAST_6 and not any(address in network for network in _SPECIAL_6)


def _embedded(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address leads to, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to checked addresses only; TLS still verifies the name."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        # For a type checker it is missing where anyio may be missing.
        self._backend: Any = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve the name, check all its addresses, and connect to one of them.

        Raises:
            Forbidden: An address is not allowed.
        """
        addresses = self._allowed.check(host, await _resolve(host, port, timeout))
        return await self.connect_any(addresses, port, timeout, local_address, socket_options)

    async def connect_any(
        self, addresses: list[str], port: int, timeout: float | None, *more: Any
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first of these addresses that answers; no name is resolved."""
        *first, last = addresses
        for address in first:
            try:
                return await self._backend.connect_tcp(address, port, timeout, *more)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._backend.connect_tcp(last, port, timeout, *more)

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


async def _resolve(host: str, port: int, timeout: float | None) -> list[str]:
    try:
        async with asyncio.timeout(timeout):
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
    except socket.gaierror as error:
        raise httpcore.ConnectError(str(error)) from error
    except TimeoutError as error:
        raise httpcore.ConnectTimeout(f"resolving {host} timed out") from error
    return [str(each[4][0]) for each in found]


# The channel

TIMEOUT: Final = 15.0  # for one whole delivery
FEWEST_KEY_BYTES: Final = 24  # by the specification
_PREFIX: Final = "whsec_"
_GOOD: Final = range(200, 300)


class WebhookSettings(Checked, frozen=True, kw_only=True):
    """Where to post, and how to sign.

    Attributes:
        url: The endpoint; HTTPS, unless `plain_http`.
        secret: The key: base64 of at least 24 bytes, after `whsec_`.
        networks: Networks that are allowed although they are not public: `("10.0.0.0/8",)`.
        plain_http: Allow `http://`, which everybody on the way can read: for this machine only.
    """

    url: str
    secret: Secret[str]
    networks: tuple[str, ...] = ()
    plain_http: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _key(self.secret)


class WebhookRefused(Exception):
    """The endpoint refused a delivery with this `status`."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the webhook endpoint answered {status}")
        self.status = status


class WebhookChannel:
    """Sends notices to another program."""

    def __init__(
        self, settings: WebhookSettings, store: ApprovalStore, name: str = "webhook"
    ) -> None:
        """Take the settings.

        Raises:
            ValueError: The URL is not HTTPS.
        """
        check_scheme(settings.url, plain_http=settings.plain_http)
        self.name = name
        self.timeout = TIMEOUT
        self._settings = settings
        self._store = store

    async def recipients(
        self,
        notice: Notice,  # noqa: ARG002  part of the protocol
        approval: Approval | None,  # noqa: ARG002  part of the protocol
    ) -> list[str]:
        """Return the host of the endpoint; the rest of its URL may be a secret."""
        return [urlsplit(self._settings.url).hostname or "the endpoint"]

    async def deliver(
        self,
        notice: Notice,
        approval: Approval | None,
        recipient: str,  # noqa: ARG002  there is only one
    ) -> str:
        """Post the notice.

        Raises:
            WebhookRefused: The status is not 2xx; a redirect is not followed.
            Forbidden: The address is not allowed.
            httpcore.NetworkError, TimeoutError: The endpoint was not reached in time.
        """
        body = msgspec.json.encode(_event(notice, approval))
        time = str(int(await self._store.now()))
        headers = {
            "content-type": "application/json",
            "user-agent": "perdure",
            "webhook-id": notice.id,
            "webhook-timestamp": time,
            "webhook-signature": sign(self._settings.secret, notice.id, time, body),
        }
        allowed = Allowed(self._settings.networks)
        await post(self._settings.url, body, headers, allowed, self.timeout)
        return notice.id


def check_scheme(url: str, *, plain_http: bool) -> None:
    """Check that a URL is HTTPS.

    Raises:
        ValueError: It is not, and that is not allowed.
    """
    scheme = urlsplit(url).scheme
    if scheme != "https" and not (scheme == "http" and plain_http):
        raise ValueError(f"a webhook URL begins with https://, not {scheme}://")


async def post(
    url: str, body: bytes, headers: Mapping[str, str], allowed: Allowed, timeout: float = TIMEOUT
) -> None:
    """Post to an endpoint whose addresses are checked; a redirect is not followed.

    Raises:
        WebhookRefused: The status is not 2xx.
        Forbidden: The address is not allowed.
        httpcore.NetworkError, TimeoutError: The endpoint was not reached in time.
    """
    async with (
        asyncio.timeout(timeout),
        httpcore.AsyncConnectionPool(network_backend=CheckedBackend(allowed)) as pool,
        pool.stream("POST", url, headers=[*headers.items()], content=body) as answer,
    ):
        # The body of the response is not read: it may be endless.
        if answer.status not in _GOOD:
            raise WebhookRefused(answer.status)


def _event(notice: Notice, approval: Approval | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": notice.id,
        "type": notice.kind.value,
        "tenant": notice.tenant,
        "job": notice.job_id,
        "data": msgspec.Raw(notice.data),
    }
    if notice.alert:  # of an alert, and of its acknowledgement and resolution
        told["alert"] = notice.alert
    if approval is not None:
        told["approval"] = {
            "id": approval.id,
            "title": approval.title,
            "description": approval.description,
            "step": approval.step,
            "risk": str(approval.risk),
            "state": approval.state.value,
            "outcome": outcome_of(approval),
            "action_hash": approval.action.hash,
            "arguments": for_people(approval.shown),
            "edited_by": [each.person for each in approval.edits],
            "arguments_before": before_edits(approval),
            "expires_at": approval.expires_at,
        }
    return told


def _key(secret: Secret[str]) -> bytes:
    """Return the key of a secret; with an empty one, everybody could sign.

    Raises:
        ValueError: It is not base64, or too short.
    """
    try:
        key = base64.b64decode(secret.reveal().removeprefix(_PREFIX), validate=True)
    except ValueError:
        key = b""
    if len(key) < FEWEST_KEY_BYTES:
        raise ValueError(
            f"a webhook secret is the base64 of at least {FEWEST_KEY_BYTES} bytes: "
            "make one with `openssl rand -base64 32`"
        )
    return key


def sign(secret: Secret[str], id: str, time: str, body: bytes) -> str:
    """Return the signature of a message.

    Raises:
        ValueError: The secret is invalid.
    """
    signed = hmac.new(_key(secret), b".".join((id.encode(), time.encode(), body)), hashlib.sha256)
    return "v1," + base64.b64encode(signed.digest()).decode()


def is_signed(
    secrets: Iterable[Secret[str]], id: str, time: str, body: bytes, signatures: str
) -> bool:
    """Whether one of the signatures was made with one of the keys; for receivers."""
    made = [sign(secret, id, time, body) for secret in secrets]
    given = [each.encode() for each in signatures.split()]
    return any(hmac.compare_digest(one.encode(), other) for one in made for other in given)
