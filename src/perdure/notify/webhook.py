"""Web hooks: a signed POST to an address that somebody has given.

Signed as the Standard Webhooks specification says, so that its libraries can check it:
an HMAC over id, time and body, with the id the same at every try.
"""

import asyncio
import base64
import hashlib
import hmac
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import httpcore
import msgspec
from msgspec import Struct

from perdure.base.secret import Secret
from perdure.jobs.approval import Approval
from perdure.jobs.outbox import Notice
from perdure.jobs.redaction import for_people
from perdure.notify.message import before_edits, outcome_of
from perdure.notify.people import ApprovalStore

# To which addresses of the network we speak when somebody else gave us the URL.
#
# A name is checked when it is connected to, and it is the checked address that is connected to:
# a name that is looked up twice can lead to two places.

Address: TypeAlias = IPv4Address | IPv6Address

# Our own list: what `is_global` says differs from one Python to the next.
# IANA's registries of special-purpose addresses, the few of them that are public included:
# none of them is a web server.
_SPECIAL_4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared, of providers
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # not IANA's: the host of a virtual machine in Azure
            "169.254.0.0/16",  # link-local, with the metadata of clouds
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
            "2002::/16",  # 6to4, which holds IPv4 addresses
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64: Final = IPv6Network("64:ff9b::/96")  # the last 32 bits are an IPv4 address


class Forbidden(OSError):
    """The name leads to an address that we do not speak to."""


class Allowed:
    """Public addresses, and those networks that are named."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [ip_network(network) for network in networks]

    def allows(self, address: Address) -> bool:
        """Tell whether an address may be spoken to, also if it hides in another one."""
        inner = _hidden(address)
        named = self._networks
        if any(_is_in(each, network) for each in (address, inner) for network in named):
            return True
        return _is_public(inner)

    def check(self, host: str, addresses: Iterable[str]) -> list[str]:
        """Give the addresses of a host.

        Raises:
            Forbidden: One of them must not be spoken to: the name is not trusted at all then.
        """
        found = [address.split("%")[0] for address in addresses]
        bad = [address for address in found if not self.allows(ip_address(address))]
        if bad or not found:
            raise Forbidden(f"{host} leads to {', '.join(bad) or 'nowhere'}, which is not public")
        return found


def _is_in(address: Address, network: Any) -> bool:
    return address.version == network.version and address in network


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_4)
    return address in _UNICAST_6 and not any(address in network for network in _SPECIAL_6)


def _hidden(address: Address) -> Address:
    """Give the IPv4 address that is reached by an IPv6 address, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to checked addresses only; TLS still asks for the name."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        # To a type checker it is absent where anyio may be.
        self._backend: Any = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        """Look the name up, check all its addresses, and connect to one of them.

        Raises:
            Forbidden: An address must not be spoken to.
        """
        addresses = self._allowed.check(host, await _look_up(host, port, timeout))
        return await self.connect_any(addresses, port, timeout, local_address, socket_options)

    async def connect_any(
        self, addresses: list[str], port: int, timeout: float | None, *more: Any
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first of these addresses that answers; no name is looked up any more."""
        *first, last = addresses
        for address in first:
            try:
                return await self._backend.connect_tcp(address, port, timeout, *more)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._backend.connect_tcp(last, port, timeout, *more)

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


async def _look_up(host: str, port: int, timeout: float | None) -> list[str]:
    try:
        async with asyncio.timeout(timeout):
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
    except socket.gaierror as error:
        raise httpcore.ConnectError(str(error)) from error
    except TimeoutError as error:
        raise httpcore.ConnectTimeout(f"the name {host} is not found in time") from error
    return [str(each[4][0]) for each in found]


TIMEOUT: Final = 15.0  # for all of it
FEWEST_KEY_BYTES: Final = 24  # as the specification says
_PREFIX: Final = "whsec_"
_GOOD: Final = range(200, 300)


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """Where to post, and how to sign.

    Attributes:
        url: The receiver; HTTPS, unless `plain_http`.
        secret: The key: base64 of at least 24 bytes, after `whsec_`.
        networks: Networks that may be spoken to although they are not public: `("10.0.0.0/8",)`.
        plain_http: Everybody on the way may read it: for receivers on this machine.
    """

    url: str
    secret: Secret[str]
    networks: tuple[str, ...] = ()
    plain_http: bool = False

    def __post_init__(self) -> None:
        _key(self.secret)


class WebhookRefused(Exception):
    """The receiver did not take it; `status` is its answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the web hook answered {status}")
        self.status = status


class WebhookChannel:
    """Tells another program."""

    def __init__(
        self, settings: WebhookSettings, store: ApprovalStore, name: str = "webhook"
    ) -> None:
        """Take the settings.

        Raises:
            ValueError: The URL is not one that we post to.
        """
        scheme = urlsplit(settings.url).scheme
        if scheme != "https" and not (scheme == "http" and settings.plain_http):
            raise ValueError(f"a web hook is posted to https://…, not to {scheme}://…")
        self.name = name
        self.timeout = TIMEOUT
        self._settings = settings
        self._store = store

    async def recipients(
        self,
        notice: Notice,  # noqa: ARG002  a channel may go by it
        approval: Approval | None,  # noqa: ARG002  likewise
    ) -> list[str]:
        """Name the receiver; its whole URL may be a secret."""
        return [urlsplit(self._settings.url).hostname or "the receiver"]

    async def deliver(
        self,
        notice: Notice,
        approval: Approval | None,
        recipient: str,  # noqa: ARG002  there is but one
    ) -> str:
        """Post it.

        Raises:
            WebhookRefused: The answer is not 2xx; a redirect is not followed.
            Forbidden: The address is not one that we speak to.
            httpcore.NetworkError, TimeoutError: It could not be reached, or not in time.
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
        await self._post(body, headers)
        return notice.id

    async def _post(self, body: bytes, headers: dict[str, str]) -> None:
        backend = CheckedBackend(Allowed(self._settings.networks))
        async with (
            asyncio.timeout(self.timeout),
            httpcore.AsyncConnectionPool(network_backend=backend) as pool,
            pool.stream(
                "POST",
                self._settings.url,
                headers=[*headers.items()],
                content=body,
            ) as answer,
        ):
            # What it says besides is not read: it may have no end.
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
    if approval is not None:
        told["approval"] = {
            "id": approval.id,
            "title": approval.title,
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
    """Give the key of a secret: with an empty one, everybody could sign.

    Raises:
        ValueError: It is no base64, or too short.
    """
    try:
        key = base64.b64decode(secret.reveal().removeprefix(_PREFIX), validate=True)
    except ValueError:
        key = b""
    if len(key) < FEWEST_KEY_BYTES:
        raise ValueError(
            f"the secret of a web hook is the base64 of at least {FEWEST_KEY_BYTES} bytes: "
            "make one with `openssl rand -base64 32`"
        )
    return key


def sign(secret: Secret[str], id: str, time: str, body: bytes) -> str:
    """Sign a message.

    Raises:
        ValueError: The secret is none.
    """
    signed = hmac.new(_key(secret), b".".join((id.encode(), time.encode(), body)), hashlib.sha256)
    return "v1," + base64.b64encode(signed.digest()).decode()


def is_signed(
    secrets: Iterable[Secret[str]], id: str, time: str, body: bytes, signatures: str
) -> bool:
    """Tell whether one of some signatures was made with one of some keys; for receivers."""
    made = [sign(secret, id, time, body) for secret in secrets]
    given = [each.encode() for each in signatures.split()]
    return any(hmac.compare_digest(one.encode(), other) for one in made for other in given)
