"""The tenant-bound handle: what belongs to another tenant is not there at all."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure.web.api
from perdure import App
from perdure.base.errors import (
    AccessDenied,
    IllegalTransition,
    JobNotFound,
    QueryError,
    UnknownName,
)
from perdure.engine.submission import SubmitOptions
from perdure.jobs.approval import ApprovalState
from perdure.jobs.argument_change import ArgumentEdit
from perdure.jobs.model import JobQuery, Schedule
from perdure.web.access.principal import Role
from perdure.web.access.tenant import TenantHandle
from tests.support.tenants import Seeded, canary, door, of, seeded, tenant_app

ALL = (Role.OPERATOR, Role.APPROVER, Role.ADMIN)


@asynccontextmanager
async def two_tenants(url: str) -> AsyncGenerator[tuple[App, dict[str, Seeded]], None]:
    app = tenant_app(url)
    try:
        yield app, await seeded(app)
    finally:
        await app.close()


def shown(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=repr).decode()


async def test_a_tenant_sees_its_own_and_nothing_of_the_other(url: str) -> None:
    async with two_tenants(url) as (app, mine):
        store = door(app, of("acme", *ALL))
        job = mine["acme"].job
        reader = await store.read(job)
        everything = [
            await store.jobs(),
            await store.approvals(None),
            await store.schedules(),
            await store.messages(job),
            await store.events(job),
            await store.output(job, "default"),
            await reader.journal(),
            await store.workers(),
            await store.queues(),
        ]
        text = shown(everything)
        assert canary("acme") in text
        assert canary("globex") not in text


def _touches(mine: Seeded) -> dict[str, Callable[[TenantHandle], Awaitable[Any]]]:
    job, approval = mine.job, mine.approval
    return {
        "job": lambda store: store.job(job),
        "read": lambda store: store.read(job),
        "messages": lambda store: store.messages(job),
        "events": lambda store: store.events(job),
        "output": lambda store: store.output(job, "default"),
        "cancel": lambda store: store.command(job, "cancel"),
        "pause": lambda store: store.command(job, "pause"),
        "retry": lambda store: store.command(job, "retry"),
        "skip": lambda store: store.command(job, "skip", step="pay"),
        "send": lambda store: store.send(job, "note"),
        "fork": lambda store: store.fork(job, "pay"),
        "approval": lambda store: store.approval(approval),
        "decide": lambda store: store.decide(approval, "approve", action_hash="x"),
        "delegate": lambda store: store.delegate(approval, to="bob"),
    }


async def test_whatever_belongs_to_another_tenant_is_as_if_it_did_not_exist(url: str) -> None:
    async with two_tenants(url) as (app, mine):
        store = door(app, of("acme", *ALL, signed_in_at=await app.verbs.now()))
        theirs, nobodys = mine["globex"], Seeded(tenant="", job="f" * 32, approval="e" * 32)
        missing = _touches(nobodys)
        for name, touch in _touches(theirs).items():
            with pytest.raises((JobNotFound, UnknownName)) as found:
                await touch(store)
            with pytest.raises(type(found.value)) as same:
                await missing[name](store)
            text = str(found.value).replace(theirs.job, "?").replace(theirs.approval, "?")
            other = str(same.value).replace(nobodys.job, "?").replace(nobodys.approval, "?")
            assert text == other, name
        assert (await app.verbs.job(theirs.job)).state == "WAITING"  # pyright: ignore[reportOptionalMemberAccess]


async def test_part_of_an_id_finds_no_job_of_another_tenant(url: str) -> None:
    async with two_tenants(url) as (app, mine):
        with pytest.raises(JobNotFound):
            await door(app, of("acme", *ALL)).job(mine["globex"].job[:8])


async def test_a_query_for_another_tenant_is_refused_and_finds_nothing_of_ones_own(
    url: str,
) -> None:
    async with two_tenants(url) as (app, mine):
        store = door(app, of("acme", *ALL))
        asked = JobQuery(tenant="globex")
        for refused in (store.jobs, store.rows, store.counts):
            with pytest.raises(QueryError):
                await refused(asked)
        with pytest.raises(QueryError):
            await store.command_jobs("cancel", asked, dry_run=True)
        own = await store.jobs(JobQuery(tenant="acme"))
        assert [each.id for each in own] == [mine["acme"].job]


async def test_what_is_submitted_belongs_to_the_tenant_and_the_person_of_the_credential(
    url: str,
) -> None:
    async with two_tenants(url) as (app, _):
        store = door(app, of("acme", Role.OPERATOR))
        options: SubmitOptions = {"tenant": "globex", "user": "boss@globex"}
        job = await store.job(await store.submit("business", {"text": "x"}, options))
        assert (job.tenant, job.user) == ("acme", "ann@acme")


async def test_a_schedule_of_another_tenant_is_neither_replaced_nor_deleted(url: str) -> None:
    async with two_tenants(url) as (app, _):
        store = door(app, of("acme", Role.OPERATOR))
        (theirs,) = await app.schedules.list(tenant="globex")
        await store.put_schedule(msgspec.structs.replace(theirs, cron="1 1 * * *"))
        await store.delete_schedule("nightly")
        with pytest.raises(UnknownName):
            await store.schedule("nightly")
        (kept,) = await app.schedules.list(tenant="globex")
        assert isinstance(kept, Schedule)
        assert kept.cron == "0 3 * * *"


async def test_a_tenant_sees_neither_hosts_nor_the_jobs_of_others_in_workers_and_queues(
    url: str,
) -> None:
    async with two_tenants(url) as (app, _), app.running():
        all_of_it = door(app, of(None, Role.ADMIN))
        (worker,) = await all_of_it.workers()
        assert worker.host
        assert worker.pid
        (veiled,) = await door(app, of("acme", Role.ADMIN)).workers()
        assert (veiled.host, veiled.pid) == ("", 0)
        assert veiled.running <= 1
        (counted,) = await all_of_it.queues()
        (own,) = await door(app, of("acme")).queues()
        assert counted.ready + counted.waiting + counted.running == 2
        assert own.ready + own.waiting + own.running == 1
        assert type(own.waiting) is int


@pytest.mark.parametrize("role", list(Role))
async def test_no_role_of_a_tenant_pauses_a_queue_of_all(url: str, role: Role) -> None:
    app = tenant_app(url)
    try:
        with pytest.raises(AccessDenied):
            await door(app, of("acme", role)).pause_queue("default")
        assert await door(app, of(None, Role.ADMIN)).pause_queue("default")
    finally:
        await app.close()


async def test_a_door_checks_the_permission_even_if_a_route_forgets_it(url: str) -> None:
    async with two_tenants(url) as (app, mine):
        store = door(app, of("acme", Role.VIEWER))
        for name, touch in _touches(mine["acme"]).items():
            if name in ("job", "read", "messages", "events", "output", "approval"):
                await touch(store)
            else:
                with pytest.raises(AccessDenied) as refused:
                    await touch(store)
                assert refused.value.code == "forbidden"


async def test_skipping_never_takes_a_question_from_people(url: str) -> None:
    async with two_tenants(url) as (app, mine):
        store = door(app, of("acme", Role.OPERATOR))
        with pytest.raises(IllegalTransition, match="waits for people"):
            await store.command(mine["acme"].job, "skip", step="pay", reason="no")
        approval = await store.approval(mine["acme"].approval)
        assert approval.state is ApprovalState.PENDING


async def test_high_risk_needs_a_recent_sign_in(url: str) -> None:
    async with two_tenants(url) as (app, mine):
        now, asked = await app.verbs.now(), mine["acme"].approval
        seen = (await app.verbs.approval(asked)).action.hash  # pyright: ignore[reportOptionalMemberAccess]
        for signed_in in (None, now - 16 * 60):
            store = door(app, of("acme", Role.APPROVER, signed_in_at=signed_in))
            with pytest.raises(AccessDenied) as refused:
                await store.decide(asked, "approve", action_hash=seen)
            assert refused.value.code == "reauthenticate"
        store = door(app, of("acme", Role.APPROVER, signed_in_at=now))
        decided = await store.decide(asked, "approve", action_hash=seen)
        assert decided.state is ApprovalState.APPROVED
        assert decided.decisions[0].person == "ann@acme"


async def test_a_service_account_cannot_decide(url: str) -> None:
    async with two_tenants(url) as (app, mine):
        program = of("acme", *Role, kind="service", signed_in_at=await app.verbs.now())
        with pytest.raises(AccessDenied):
            await door(app, program).decide(mine["acme"].approval, "approve", action_hash="x")


async def test_a_fork_with_other_arguments_needs_a_permission_of_its_own(url: str) -> None:
    async with two_tenants(url) as (app, mine):
        only_fork = of("acme", Role.OPERATOR, scopes=frozenset({"jobs.fork", "jobs.read"}))
        store, job = door(app, only_fork), mine["acme"].job
        with pytest.raises(AccessDenied, match=r"jobs\.edit"):
            await store.fork(job, "greet", ArgumentEdit(arguments={"text": "other"}))
        copy = await store.job(await store.fork(job, "greet"))
        assert copy.tenant == "acme"


def test_no_route_reaches_the_store_but_by_the_handle_of_its_tenant() -> None:
    folder = Path(perdure.web.api.__file__).parent
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(folder.glob("*.py"))
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"perdure\.(engine\.caller|store\.(store|open))|\._caller|\.verbs\b", line)
    ]
    assert found == []
