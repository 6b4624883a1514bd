"""Settings that users fill in are refused when they are made, not hours later."""

from collections.abc import Callable
from typing import Any

import pytest

from perdure import ItemPolicy, PayloadLimits, QueueLimit, WorkerSettings
from perdure.approvals import ApprovalTerms, GatePolicy, Policy
from perdure.base.secret import Secret
from perdure.jobs.gate import Gate
from perdure.jobs.risk import RiskLevel
from perdure.notify.mail import MailSettings
from perdure.notify.pagerduty import PagerDutySettings
from perdure.web.access.settings import AccessSettings
from perdure.web.body import RequestLimits
from perdure.web.server import ServerSettings


def mail(**settings: Any) -> MailSettings:
    return MailSettings(host="h", sender="a@b", base_url="https://b", **settings)


def pager(**settings: Any) -> PagerDutySettings:
    return PagerDutySettings(routing_key=Secret("key"), **settings)


WRONG: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (mail, {"tls": "none"}, "`tls` of MailSettings must be True or False, not 'none'"),
    (mail, {"alerts_to": "ops@b"}, "`alerts_to` of MailSettings must be a tuple or a set, not"),
    (mail, {"alerts_to": [3]}, "has a part that must be a text, not 3"),
    (mail, {"password": "hunter2"}, "`password` of MailSettings must be a Secret, not a str"),
    (mail, {"port": True}, "must be a whole number, not True"),
    (pager, {"severities": {"alert.stuck": "loud"}}, "must be one of critical, error, warning"),
    (ItemPolicy, {"on_error": "explode"}, "must be one of fail, skip, quarantine, not 'explode'"),
    (QueueLimit, {"running": "3"}, "must be a whole number, not '3'"),
    (ApprovalTerms, {"expires": "1h"}, "`expires` of ApprovalTerms must be a number, not '1h'"),
    (ApprovalTerms, {"approvers": "ann"}, "must be a tuple or a set, not a str"),
    (GatePolicy, {"gates": {"high": "wait"}}, "must be one of LOW, MEDIUM, HIGH, CRITICAL"),
    (Policy, {"redaction": "all"}, "must be a Redaction, not a str"),
    (PayloadLimits, {"result": 1e9}, "must be a whole number, not 1000000000.0"),
    (AccessSettings, {"idle": "1h"}, "must be a number, not '1h'"),
    (AccessSettings, {"hosts": "localhost"}, "must be a tuple or a set, not a str"),
    (RequestLimits, {"body": "1MB"}, "must be a whole number, not '1MB'"),
    (ServerSettings, {"port": "80"}, "must be a whole number, not '80'"),
    (WorkerSettings, {"allow_kill": "no"}, "allow_kill must be True or False, not 'no'"),
]


@pytest.mark.parametrize(("make", "given", "why"), WRONG, ids=[str(given) for _, given, _ in WRONG])
def test_a_setting_of_the_wrong_kind_is_refused_at_once(
    make: Callable[..., Any], given: dict[str, Any], why: str
) -> None:
    with pytest.raises(TypeError) as caught:
        make(**given)
    assert why in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_what_fits_is_accepted_in_every_usual_spelling() -> None:
    assert mail(alerts_to=["ops@b"], password=Secret("x"), tls=True).tls
    assert pager(severities={"alert.stuck": "warning"}).severities
    assert ApprovalTerms(approvers=frozenset({"ann"}), expires=60).expires == 60
    assert GatePolicy(gates={RiskLevel.HIGH: Gate.RUN}).gate(RiskLevel.HIGH, "t") is Gate.RUN
    assert Policy().channels == ()
