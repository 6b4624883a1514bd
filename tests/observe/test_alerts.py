"""Alerts to PagerDuty and to a webhook, delivered over HTTP by a real worker."""

import base64
from typing import Any

import msgspec
import pytest

import perdure
from perdure.app import App
from perdure.base.secret import Secret
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.state import JobState
from perdure.notify.pagerduty import PagerDutyChannel, PagerDutySettings
from perdure.notify.webhook import WebhookChannel, WebhookRefused, WebhookSettings, is_signed
from tests.support.engine import durable, until
from tests.support.servers import HttpSite, Request, http
from tests.support.store import sql

KEY = Secret("R0UT1NGKEY")
HOOK = Secret("whsec_" + base64.b64encode(b"k" * 32).decode())
LOOPBACK: dict[str, Any] = {"networks": ("127.0.0.0/8",), "plain_http": True}

ALERT = Notice(
    id="n1",
    tenant="acme",
    kind=NoticeKind.STUCK,
    job_id="job-1",
    channel="pagerduty",
    due_at=0.0,
    data=b'{"text":"password=canary-1 hangs"}',
    alert="a1",
)


def pagerduty(site: HttpSite, **more: Any) -> PagerDutyChannel:
    url = f"http://{site.address}/v2/enqueue"
    return PagerDutyChannel(PagerDutySettings(routing_key=KEY, url=url, **LOOPBACK, **more))


def read(request: Request) -> dict[str, Any]:
    return msgspec.json.decode(request.body)


async def events(site: HttpSite, number: int) -> list[dict[str, Any]]:
    return [read(await site.requests.get()) for _ in range(number)]


async def test_an_alert_triggers_an_incident_and_its_end_finds_it_by_the_same_key() -> None:
    async with http((202, b"{}")) as site:
        channel = pagerduty(site, source="shop", severities={"alert.in_doubt": "warning"})
        kinds = (NoticeKind.STUCK, NoticeKind.ACKNOWLEDGED, NoticeKind.RESOLVED)
        for kind in (*kinds, NoticeKind.IN_DOUBT):
            notice = msgspec.structs.replace(ALERT, kind=kind)
            assert await channel.deliver(notice, None, "shop") == "a1"
        trigger, acknowledge, resolve, other = await events(site, 4)
    assert trigger["routing_key"] == "R0UT1NGKEY"
    assert trigger["event_action"] == "trigger"
    payload = trigger["payload"]
    assert (payload["source"], payload["severity"], payload["class"]) == (
        "shop",
        "critical",
        "alert.stuck",
    )
    assert "job-1" in payload["summary"]
    assert "canary" not in str(trigger)
    assert [acknowledge["event_action"], resolve["event_action"]] == ["acknowledge", "resolve"]
    assert {each["dedup_key"] for each in (trigger, acknowledge, resolve)} == {"a1"}
    assert "payload" not in resolve
    assert other["payload"]["severity"] == "warning"


async def test_a_refusal_of_pagerduty_is_an_error_so_that_it_is_sent_again() -> None:
    async with http((429, b"")) as site:
        with pytest.raises(WebhookRefused, match="429"):
            await pagerduty(site).deliver(ALERT, None, "perdure")


def test_pagerduty_needs_https_and_a_key() -> None:
    with pytest.raises(ValueError, match="https"):
        PagerDutyChannel(PagerDutySettings(routing_key=KEY, url="http://example.com"))
    with pytest.raises(ValueError, match="integration key"):
        PagerDutyChannel(PagerDutySettings(routing_key=Secret("")))


@durable
async def test_a_parked_job_is_an_incident_until_somebody_resumes_it(app: App) -> None:
    broken = [True]

    @app.step(retry=perdure.Retry(attempts=1))
    async def call(ctx: StepContext) -> str:
        if broken:
            raise ConnectionError("the bank is away")
        return "done"

    @app.job
    async def job(ctx: JobContext) -> str:
        return await call()

    async with http((503, b""), (202, b"")) as site, http((200, b"")) as hook:
        url = f"http://{hook.address}/alerts"
        settings = WebhookSettings(url=url, secret=HOOK, **LOOPBACK)
        webhook = WebhookChannel(settings, app.approval_store, name="monitoring")
        app.policy = Policy(alerts=(webhook, pagerduty(site)))
        async with app.running():
            handle = await app.submit(job())
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
            posted = await hook.requests.get()
            (first,) = await events(site, 1)  # which is refused, and will be sent again
            broken.clear()
            await handle.resume("it is back", by="kim")
            assert await handle.result("20s") == "done"
            (resolved,) = await events(site, 1)
            told = read(await hook.requests.get())
    alert = read(posted)
    signed = [posted.headers[f"webhook-{each}"] for each in ("id", "timestamp", "signature")]
    assert is_signed([HOOK], signed[0], signed[1], posted.body, signed[2])
    assert (alert["type"], told["type"]) == ("alert.needs_attention", "alert.resolved")
    assert alert["alert"] == told["alert"] == first["dedup_key"] == resolved["dedup_key"]
    assert (first["event_action"], resolved["event_action"]) == ("trigger", "resolve")


@durable
async def test_an_alert_that_could_not_be_sent_is_not_sent_after_its_resolution(app: App) -> None:
    store = await app.store()

    @app.job
    async def job(ctx: JobContext) -> None: ...

    handle = await app.submit(job())
    alert = msgspec.structs.replace(ALERT, job_id=handle.id, tries=1)
    assert not await store.is_closed(alert)
    await store.alert_workers([alert])
    await store.claim("w", app.queues, 1, 60)
    await handle.cancel("it hangs", by="kim")  # its worker hears of it: somebody takes care
    found = await store.take_notices(["pagerduty"], 20, 60)
    assert [each.kind for each in found] == [NoticeKind.STUCK, NoticeKind.ACKNOWLEDGED]
    assert not await store.is_closed(alert)


@durable
async def test_an_effect_in_doubt_is_an_incident_until_it_is_resolved(app: App) -> None:
    async def unsure(key: str) -> None:
        raise TimeoutError

    @app.step
    async def pay(ctx: StepContext) -> None:
        await ctx.effect("payment", unsure, target="card")

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()

    async with http((202, b"")) as site:
        app.policy = Policy(alerts=(pagerduty(site),))
        async with app.running():
            handle = await app.submit(job())
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
            (trigger,) = await events(site, 1)
            (effect,) = await handle.effects()
            await handle.resolve(effect.no, "happened", by="kim")
            (resolve,) = await events(site, 1)
    assert trigger["payload"]["class"] == "alert.in_doubt"
    assert resolve == {**resolve, "event_action": "resolve", "dedup_key": trigger["dedup_key"]}


@durable
async def test_a_worker_that_is_gone_is_told_of_once(app: App) -> None:
    async with http((202, b"")) as site:
        app.policy = Policy(alerts=(pagerduty(site),))
        store = await app.store()
        await store.heartbeat("gone", b"{}")
        sql(app.url, "UPDATE worker SET heartbeat_at = heartbeat_at - 1000")
        async with app.running():
            (trigger,) = await events(site, 1)
    assert trigger["payload"]["class"] == "alert.worker_dead"
    assert trigger["dedup_key"]
    assert await store.violations() == []


@durable
async def test_questions_do_not_go_to_channels_for_alerts(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.approve("Ship it?")

    async with http((202, b"")) as site:
        app.policy = Policy(alerts=(pagerduty(site),))
        async with app.running():
            handle = await app.submit(job(), user="kim")
            await until(app, handle.id, JobState.WAITING)
        assert await (await app.store()).take_notices(["pagerduty"], 20, 60) == []
        assert site.requests.empty()
