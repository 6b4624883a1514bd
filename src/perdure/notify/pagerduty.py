"""PagerDuty: alerts as incidents, by its Events API v2.

An alert triggers an incident, and its acknowledgement or resolution finds it by the same
`dedup_key`; so an alert that is delivered twice is still one incident. Put the channel into
`Policy(alerts=…)`: it asks nobody for approvals.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from perdure.base.checked import Checked
from perdure.base.secret import Secret, without_secrets
from perdure.base.visible import visible
from perdure.jobs.approval import Approval
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.notify.message import alert_text
from perdure.notify.webhook import TIMEOUT, Allowed, check_scheme, post

Severity: TypeAlias = Literal["critical", "error", "warning", "info"]

LONGEST_SUMMARY: Final = 1024  # by the API

_ACTIONS: Final[Mapping[str, str]] = {
    NoticeKind.ACKNOWLEDGED: "acknowledge",
    NoticeKind.RESOLVED: "resolve",
}
_SEVERITIES: Final[Mapping[str, Severity]] = {
    NoticeKind.IN_DOUBT: "critical",
    NoticeKind.UNDO_FAILED: "critical",
    NoticeKind.STUCK: "critical",
    NoticeKind.NOT_UNDONE: "error",
    NoticeKind.NEEDS_ATTENTION: "error",
}


class PagerDutySettings(Checked, frozen=True, kw_only=True):
    """Which service gets the alerts.

    Attributes:
        routing_key: The integration key of the service (Events API v2).
        source: What is affected, as incidents show it: the name of the installation.
        severities: Other severities for some kinds: `{"alert.stuck": "warning"}`.
        url: The endpoint; another one for the European region.
        networks: Networks that are allowed although they are not public.
        plain_http: Allow `http://`: for this machine only.
    """

    routing_key: Secret[str]
    source: str = "perdure"
    severities: Mapping[str, Severity] = {}
    url: str = "https://events.pagerduty.com/v2/enqueue"
    networks: tuple[str, ...] = ()
    plain_http: bool = False


class PagerDutyChannel:
    """Sends alerts to PagerDuty."""

    def __init__(self, settings: PagerDutySettings, name: str = "pagerduty") -> None:
        """Take the settings.

        Raises:
            ValueError: The URL is not HTTPS, or there is no key.
        """
        check_scheme(settings.url, plain_http=settings.plain_http)
        if not settings.routing_key.reveal():
            raise ValueError("PagerDuty needs the integration key of a service")
        self.name = name
        self.timeout = TIMEOUT
        self._settings = settings

    async def recipients(
        self,
        notice: Notice,  # noqa: ARG002  part of the protocol
        approval: Approval | None,  # noqa: ARG002  part of the protocol
    ) -> list[str]:
        """Return the only one."""
        return [self._settings.source]

    async def deliver(
        self,
        notice: Notice,
        approval: Approval | None,
        recipient: str,  # noqa: ARG002  there is only one
    ) -> str:
        """Send an event; return its `dedup_key`.

        Raises:
            WebhookRefused: PagerDuty did not accept it; 429 means that there are too many.
            httpcore.NetworkError, TimeoutError: It was not reached in time.
        """
        event = self._event(notice, approval)
        settings, headers = self._settings, {"content-type": "application/json"}
        allowed = Allowed(settings.networks)
        await post(settings.url, msgspec.json.encode(event), headers, allowed, self.timeout)
        return str(event["dedup_key"])

    def _event(self, notice: Notice, approval: Approval | None) -> dict[str, Any]:
        told: dict[str, Any] = {
            "routing_key": self._settings.routing_key.reveal(),
            "event_action": _ACTIONS.get(notice.kind, "trigger"),
            "dedup_key": notice.alert or notice.id,
        }
        if told["event_action"] == "trigger":
            told["payload"] = self._payload(notice, approval)
        return told

    def _payload(self, notice: Notice, approval: Approval | None) -> dict[str, Any]:
        usual = _SEVERITIES.get(notice.kind, "warning")
        return {
            "summary": without_secrets(alert_text(notice, approval))[:LONGEST_SUMMARY],
            "source": self._settings.source,
            "severity": self._settings.severities.get(notice.kind.value, usual),
            "component": "perdure",
            "group": notice.tenant,
            "class": notice.kind.value,
            "custom_details": {"job": visible(notice.job_id), "tenant": visible(notice.tenant)},
        }
