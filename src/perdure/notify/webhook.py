"""Web hooks: a signed POST to an address that somebody has given.

Signed as the Standard Webhooks specification says, so that its libraries can check it:
an HMAC over id, time and body, with the id the same at every try.
"""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import httpcore
import msgspec
from msgspec import Struct

from perdure.base.secret import Secret
from perdure.jobs.approval import Approval
from perdure.jobs.outbox import Notice
from perdure.jobs.redaction import for_people
from perdure.notify.address import Allowed, CheckedBackend
from perdure.notify.card import before_edits, outcome_of
from perdure.notify.desk import Desk

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

    def __init__(self, settings: WebhookSettings, desk: Desk, name: str = "webhook") -> None:
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
        self._desk = desk

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
        time = str(int(await self._desk.now()))
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
