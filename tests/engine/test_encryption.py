"""Encrypted payloads: nothing of them is in the database, and whoever has the keys reads them."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import perdure
from perdure import Client, Encryption, Plan, PlanCall, Retry
from perdure.app import App
from perdure.base.encryption import PLAIN, generate_key
from perdure.base.errors import EncryptionError, JobFailed, Permanent
from perdure.cli.app import make_app
from perdure.cli.config import apply
from perdure.cli.keys import count_by_key, rotate_keys
from perdure.engine.handle import Handle
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.approval import Approval
from perdure.jobs.outbox import Notice
from perdure.jobs.output import DEFAULT_TOPIC
from perdure.jobs.state import JobState
from perdure.observe.endpoints import Endpoints
from perdure.store.open import open_store
from tests.engine.test_approval import ANN, asked
from tests.engine.test_canary import everything_in
from tests.support.engine import QUICK, nodes
from tests.support.store import sql
from tests.support.web_client import api_of

OLD, NEW = generate_key(), generate_key()
KEYS, BOTH = Encryption([OLD]), Encryption([NEW, OLD])
ONCE = Retry(attempts=1)
KINDS = (
    *("argument", "result", "large", "message", "output", "step-output", "checkpoint", "progress"),
    *("target", "details", "effect-result", "step-error", "job-error", "undo", "child", "plan"),
    *("scheduled", "question", "shown", "edited", "reason", "sent-notice", "over-http", "forked"),
)


def word(kind: str) -> str:
    """Return a text that occurs nowhere else."""
    return f"CANARY-{kind}-END"


class Board:
    """A channel that fails, and says why: that is kept in the outbox."""

    name = "board"

    async def recipients(self, notice: Notice, approval: Approval | None) -> list[str]:
        return ["all"]

    async def deliver(self, notice: Notice, approval: Approval | None, recipient: str) -> str:
        return word("sent-notice")


def steps_of(app: App) -> Any:
    """Steps that put a word into every kind of payload."""

    @app.step(retry=ONCE)
    async def act(ctx: StepContext, given: str) -> str:
        await ctx.save_checkpoint({"at": word("checkpoint")})
        ctx.emit(word("step-output"))
        details = {"note": word("details")}
        await ctx.effect(
            "mail", lambda _: word("effect-result"), target=word("target"), details=details
        )
        async with ctx.spend(usd=1.0):
            return given

    @act.compensate(retry=ONCE)
    async def unact(ctx: StepContext, result: str, given: str) -> str:
        return word("undo")

    @app.step(retry=ONCE)
    async def large() -> list[str]:
        return [word("large")] * 20_000

    @app.step(retry=ONCE)
    async def breaks() -> None:
        raise Permanent(word("step-error"))

    @app.step(tags={"financial"}, retry=ONCE)
    async def pay(ctx: StepContext, note: str) -> str:
        return note

    @app.step(retry=ONCE)
    async def waits(ctx: StepContext) -> None:
        ctx.progress(1, 2, word("progress"))
        await ctx.cancelled.wait()

    return SimpleNamespace(act=act, large=large, breaks=breaks, pay=pay, waits=waits)


class Everything:
    """Jobs that put a word into every kind of payload."""

    def __init__(self, app: App) -> None:
        steps = steps_of(app)

        @app.job
        async def child(given: str) -> str:
            return given

        @app.job
        async def everything(ctx: JobContext, given: str) -> str:
            ctx.emit(word("output"))
            await steps.act(given)
            await steps.large()
            await ctx.receive("go")
            await child(word("child"))
            paid = await steps.pay(word("shown"))
            await ctx.approve(word("question"), details={"why": word("shown")})
            return paid + word("result")

        @app.job
        async def fails(ctx: JobContext) -> None:
            await steps.act(word("argument"))
            try:
                await steps.breaks()
            finally:
                raise Permanent(word("job-error"))

        @app.job
        async def stays(ctx: JobContext) -> None:
            await steps.waits()

        self.app, self.everything, self.fails, self.stays = app, everything, fails, stays

    async def run(self) -> Handle[str]:
        """Do all of it; return the job that has most of it."""
        app = self.app
        handle = await app.submit(self.everything(word("argument")), user="kim", key="one")
        staying = await app.submit(self.stays())
        await app.schedules.put("nightly", "0 3 1 1 *", self.everything(word("scheduled")))
        failing = await app.submit(self.fails())
        with pytest.raises(JobFailed):
            await failing.result("20s")
        planned = await app.submit(Plan(PlanCall("act", given=word("plan")), name="p"))
        await planned.result("20s")
        await handle.send("go", word("message"))
        await self.answer(note=word("edited"))
        await self.answer()
        assert await handle.result("20s") == word("edited") + word("result")
        await handle.fork("act#1", word("forked"))
        await (await handle.fork("pay#1")).cancel()
        while not (await staying.job()).progress:
            await perdure.process.sleep("5ms")
        await self.over_http()
        await app.ask_worker((await app.workers())[0].id, "tree")
        return handle

    async def answer(self, **edits: str) -> None:
        approval = await asked(self.app)
        given: dict[str, Any] = {"arguments": edits} if edits else {}
        await self.app.decide(approval, "approve", by=ANN, reason=word("reason"), **given)
        while approval.id in {each.id for each in await self.app.approvals()}:
            await perdure.process.sleep("5ms")

    async def over_http(self) -> None:
        async with api_of(self.app) as client:
            body = {"name": "child", "arguments": {"given": word("over-http")}}
            headers = {"idempotency-key": "k1"}
            answer = await client.post("/api/v1/jobs", json=body, headers=headers)
            assert answer.status_code in (200, 201, 202), answer.text
            again = await client.post("/api/v1/jobs", json=body, headers=headers)
            assert again.json() == answer.json()


def raw(url: str) -> bytes:
    """Return all that is on the disk, or in all tables."""
    if not url.startswith("sqlite"):
        return everything_in(url).encode()
    path = Path(url.removeprefix("sqlite:///"))
    return b"".join(each.read_bytes() for each in path.parent.iterdir())


async def shown_to_all(app: App, handle: Handle[str]) -> str:
    """Return what callers, the API and the command line show."""
    async with api_of(app, "kim@default operator,admin,approver") as client:
        paths = ("", "/journal", "/effects", "/events", "/output/default")
        answers = [await client.get(f"/api/v1/jobs/{handle.id}{each}") for each in paths]
        answers += [await client.get("/api/v1/approvals?state=all")]
    seen = [each.text for each in answers]
    seen += [str(each) for each in await handle.effects()]
    seen += [str(await handle.output("large#1"))[:200]]
    seen += [str(each) for each in await app.approvals(None)]
    seen += [str(each) for each in await app.schedules.list()]
    for job in await app.find_jobs():
        other = await app.handle(job.id)
        seen += [str(job), *map(str, await other.journal()), *map(str, await other.events())]
        seen += [str(each.error) for each in await other.effects()]
        seen += [str(await app.verbs.output(job.id, DEFAULT_TOPIC, 0))]
    return "\n".join(seen)


def scenario(url: str, encryption: Encryption | None) -> tuple[bytes, str]:
    """Run everything; return what is stored, and what is shown."""

    async def main() -> tuple[bytes, str]:
        app = App(url, worker=QUICK, policy=Policy(channels=(Board(),)), encryption=encryption)
        jobs = Everything(app)
        async with app, app.running():
            handle = await jobs.run()
            return raw(url), await shown_to_all(app, handle)

    return perdure.run(main)


def found_in(data: bytes) -> set[str]:
    return {kind for kind in KINDS if word(kind).encode() in data}


def test_no_payload_is_in_the_database_and_all_are_shown(url: str) -> None:
    stored, shown = scenario(url, KEYS)
    assert b"CANARY" not in stored, sorted(found_in(stored))
    # A checkpoint goes with the end of its step, and receipts are not shown.
    assert set(KINDS) - found_in(shown.encode()) <= {"checkpoint", "sent-notice"}


@pytest.mark.once
def test_without_keys_the_same_search_finds_them(tmp_path: Path) -> None:
    stored, _ = scenario(f"sqlite:///{tmp_path}/jobs.db", None)
    assert set(KINDS) - found_in(stored) <= {"scheduled"}  # which is base64 there


# Programs without the keys


def greeting(app: App) -> Any:
    @app.step(retry=ONCE)
    async def greet(name: str) -> str:
        return f"{word('result')} {name}"

    @app.job
    async def greets(ctx: JobContext, name: str) -> str:
        return await greet(name)

    return greets


def greeted(url: str, encryption: Encryption | None, *names: str) -> list[str]:
    """Run a job for each name, with a worker of its own; return their ids."""

    async def main() -> list[str]:
        app = App(url, worker=QUICK, encryption=encryption)
        greets = greeting(app)
        async with app, app.running():
            handles = [await app.submit(greets(name)) for name in names]
            for handle, name in zip(handles, names, strict=True):
                assert await handle.result("20s") == f"{word('result')} {name}"
        return [each.id for each in handles]

    return perdure.run(main)


@pytest.mark.parametrize("wrong", [None, Encryption([NEW])])
def test_a_program_without_the_key_says_which_it_needs(url: str, wrong: Encryption | None) -> None:
    (job_id,) = greeted(url, KEYS, "kim")

    async def main() -> None:
        app = App(url, worker=QUICK, encryption=wrong)
        greets = greeting(app)
        said = f"the key {KEYS.writes}, .*PERDURE_ENCRYPTION_KEYS"
        async with app:
            with pytest.raises(EncryptionError, match=said):
                await (await app.handle(job_id)).result("5s")
            with pytest.raises(EncryptionError, match=said):
                await app.submit(greets("ann"))
            with pytest.raises(EncryptionError, match=said):
                async with app.running():
                    pass
            async with api_of(app) as client:
                answer = await client.get(f"/api/v1/jobs/{job_id}")
                assert (answer.status_code, answer.json()["code"]) == (503, "encrypted")
                assert KEYS.writes in answer.json()["detail"]
        assert sql(url, "SELECT count(*) FROM job") == [(1,)]

    perdure.run(main)


def shown_by(url: str, *words: str, keys: str = "", code: int = 0) -> str:
    given = {"PERDURE_URL": url, "PERDURE_ENCRYPTION_KEYS": keys}
    done = CliRunner().invoke(make_app(words[0]), list(words), env=given)
    assert done.exit_code == code, done.output
    return done.output


def test_what_people_look_at_says_what_it_cannot_read(url: str) -> None:
    (job_id,) = greeted(url, KEYS, "kim")
    assert word("result") in shown_by(url, "jobs", "show", job_id, "--full", keys=OLD)
    for words in (["jobs", "list"], ["jobs", "show", job_id, "--full"], ["effects", "list"]):
        shown_by(url, *words)
    shown = " ".join(shown_by(url, "jobs", "show", job_id, "--full", "-ojson").split())
    assert f"encrypted with the key {KEYS.writes}" in shown
    assert "CANARY" not in shown
    told = " ".join(shown_by(url, "doctor", code=1).split())
    assert f"encrypted with the key {KEYS.writes}, and this program has no key" in told
    # The PostgreSQL of the tests does not sync, which the doctor finds.
    told = shown_by(url, "doctor", keys=OLD, code=int(url.startswith("postgres")))
    assert f"encryption = {KEYS.writes} (writes: {KEYS.writes})" in told
    assert "Checked 18 rules" in told


def test_the_api_of_a_server_without_keys_says_so_in_place_of_each_payload(url: str) -> None:
    (job_id,) = greeted(url, KEYS, "kim")

    async def main() -> None:
        app = App(url, encryption=Encryption(()))
        app.shows_locked = True  # as `perdure serve` does
        async with api_of(app) as client:
            for path in ("", f"/{job_id}", f"/{job_id}/journal", f"/{job_id}/events"):
                answer = await client.get(f"/api/v1/jobs{path}")
                assert answer.status_code == 200, answer.text
                assert "CANARY" not in answer.text
            shown = (await client.get(f"/api/v1/jobs/{job_id}")).text
            assert f"encrypted with the key {KEYS.writes}" in shown
            refused = await client.post(
                f"/api/v1/jobs/{job_id}/send", json={"topic": "go", "payload": {"n": 1}}
            )
            assert refused.status_code in (409, 503), refused.text

    perdure.run(main)


def test_a_worker_that_lacks_a_new_key_claims_nothing_and_is_not_ready(url: str) -> None:
    """It began before the store was encrypted: jobs wait for workers that have the key."""

    async def main() -> None:
        plain = App(url, worker=QUICK, encryption=Encryption(()))
        greets = greeting(plain)
        async with plain, plain.running():
            assert await (await plain.submit(greets("ann"))).result("20s")
            sealed = App(url, worker=QUICK, encryption=KEYS)
            theirs = greeting(sealed)
            async with sealed:
                handle = await sealed.submit(theirs("kim"))
                queues = list(plain.queues)
                store = await plain.store()
                assert await store.claim("w", plain.queues, 5, 60.0) == []
                while nodes(plain)[0].lacks_keys != KEYS.ids:  # it says so at its next heartbeat
                    await perdure.process.sleep("5ms")
                probe = Endpoints(plain.store, workers=lambda: nodes(plain))
                unready = await probe.answer("/readyz")
                assert (unready.status, KEYS.writes in str(unready.body)) == (503, True)
                assert [each.ready for each in await store.outlook(queues)] == [False]
                async with sealed.running():
                    assert await handle.result("20s") == f"{word('result')} kim"
                with pytest.raises(EncryptionError, match=KEYS.writes):
                    await (await plain.handle(handle.id)).result("5s")
                assert [each.type for each in await handle.events()].count("claimed") == 1

    perdure.run(main)


# What was changed by others


def test_a_payload_that_was_changed_is_refused(url: str) -> None:
    job_id, other = greeted(url, KEYS, "kim", "ann")
    if url.startswith("sqlite"):
        sql(url, "DROP TRIGGER journal_result")
        sql(url, "DROP TRIGGER journal_stale")
    else:
        sql(url, "ALTER TABLE journal DISABLE TRIGGER USER")
    taken = f"(SELECT result FROM job WHERE id = '{other}')"
    sql(url, f"UPDATE job SET result = {taken} WHERE id = '{job_id}'")
    taken = f"(SELECT output FROM journal WHERE job_id = '{other}')"
    sql(url, f"UPDATE journal SET output = {taken} WHERE job_id = '{job_id}'")

    async def main() -> None:
        async with App(url, encryption=KEYS) as app:
            assert await (await app.handle(other)).result("5s") == f"{word('result')} ann"
            store = await app.store()
            with pytest.raises(EncryptionError, match=r"job\.result of .* moved here from another"):
                await store.outcomes([job_id])
            with pytest.raises(EncryptionError, match=r"journal\.output of .* moved here from"):
                await store.journal(job_id)

    perdure.run(main)
    told = shown_by(url, "doctor", keys=OLD, code=1)
    assert "moved here from another row" in told
    assert job_id in told


def without_triggers(url: str, *tables: str) -> None:
    """Let somebody who may write to the database change what never changes."""
    if not url.startswith("sqlite"):
        for table in tables:
            sql(url, f"ALTER TABLE {table} DISABLE TRIGGER USER")
        return
    found = sql(url, "SELECT name, tbl_name FROM sqlite_schema WHERE type = 'trigger'")
    for name, table in found:
        if table in tables:
            sql(url, f"DROP TRIGGER {name}")


def test_the_result_of_a_step_is_refused_as_that_of_another_step_of_its_job(url: str) -> None:
    async def main() -> None:
        app = App(url, worker=QUICK, encryption=KEYS)

        @app.step(retry=ONCE)
        async def rate(who: str) -> str:
            return f"rated {who}"

        @app.job
        async def rates(ctx: JobContext) -> list[str]:
            return [await rate("ann"), await rate("bob")]

        async with app, app.running():
            handle = await app.submit(rates())
            await handle.result("20s")
            without_triggers(url, "journal")
            taken = f"SELECT output FROM journal WHERE job_id = '{handle.id}' AND id = 'rate#2'"
            sql(
                url,
                f"UPDATE journal SET output = ({taken}) "
                f"WHERE job_id = '{handle.id}' AND id = 'rate#1'",
            )
            with pytest.raises(EncryptionError, match=r"journal\.output of .* moved here"):
                await handle.journal()

    perdure.run(main)


def test_a_schedule_is_refused_as_that_of_another_tenant(url: str) -> None:
    async def main() -> None:
        app = App(url, worker=QUICK, encryption=KEYS)
        greets = greeting(app)
        async with app:
            await app.schedules.put("nightly", "0 3 1 1 *", greets("ann"))
            sql(url, "UPDATE schedule SET tenant = 'other'")
            store = await app.store()
            with pytest.raises(EncryptionError, match=r"schedule\.job of .*other.* moved here"):
                await store.schedules()

    perdure.run(main)


FORGED = """'{"name":"mallory"}'"""


def test_plain_text_is_refused_once_everything_is_encrypted(url: str) -> None:
    (job_id,) = greeted(url, None, "kim")

    async def read(*keys: str) -> bytes:
        async with App(url, encryption=Encryption(keys)) as app:
            return (await (await app.handle(job_id)).job()).input

    async def main() -> None:
        sql(url, f"UPDATE job SET input = {FORGED} WHERE id = '{job_id}'")
        assert b"mallory" in await read(OLD)  # it is being turned on, so that may be
        assert (await rotated(url, KEYS)).left == {}
        sql(url, f"UPDATE job SET input = {FORGED} WHERE id = '{job_id}'")
        for keys in ((OLD,), (NEW, OLD), (OLD, NEW)):
            with pytest.raises(EncryptionError, match=f"job.input of {job_id} is not encrypted"):
                await read(*keys)
        with pytest.raises(EncryptionError, match=f"job.input of {job_id} is not encrypted"):
            await rotated(url, BOTH)  # which would seal what somebody has put there
        # Only the settings of a program make it legal again.
        assert b"mallory" in await read(PLAIN, OLD, NEW)
        assert b"mallory" in await read(NEW, OLD)
        assert (await rotated(url, BOTH)).left == {}
        assert b"mallory" in await read(NEW)

    perdure.run(main)


MARKS = {
    "without the record of the keys": "DELETE FROM fact WHERE name LIKE 'encryption key%'",
    "with a plain mark": "INSERT INTO fact (name, value) VALUES ('plain text is legal', 'yes')",
    "with a sealed text from elsewhere": (
        "INSERT INTO fact (name, value) "
        "SELECT 'plain text is legal', input FROM job WHERE id = '{other}'"
    ),
    "with a key that nobody has": (
        "INSERT INTO fact (name, value) VALUES ('encryption key 00000000', '')"
    ),
}


@pytest.mark.parametrize("mark", MARKS)
def test_nobody_without_a_key_makes_plain_text_legal(url: str, mark: str) -> None:
    job_id, other = greeted(url, KEYS, "kim", "ann")
    sql(url, MARKS[mark].format(other=other))
    sql(url, f"UPDATE job SET input = {FORGED} WHERE id = '{job_id}'")

    async def main() -> None:
        for _ in range(2):
            async with App(url, encryption=KEYS) as app:
                store = await app.store()
                with pytest.raises(EncryptionError):
                    await store.job(job_id)

    perdure.run(main)


def test_a_job_that_cannot_be_read_needs_attention_and_holds_up_no_other(url: str) -> None:
    """A program that had no key has submitted it, after all was encrypted."""

    async def main() -> None:
        plain = App(url, worker=QUICK, encryption=Encryption(()))
        theirs = greeting(plain)
        async with plain:
            await plain.submit(theirs("ann"))
            sealed = App(url, worker=QUICK, encryption=KEYS)
            greets = greeting(sealed)
            async with sealed:
                assert (await rotated(url, KEYS)).left == {}
                late = await plain.submit(theirs("bob"))
                good = [await sealed.submit(greets(name)) for name in ("kim", "tom")]
                async with sealed.running():
                    for handle in good:
                        await handle.result("20s")
                    store = await sealed.store()
                    (outcome,) = await store.outcomes([late.id])
                    while outcome.state is not JobState.NEEDS_ATTENTION:
                        await perdure.process.sleep("5ms")
                        (outcome,) = await store.outcomes([late.id])
                    assert b"is not encrypted, but this store is" in (outcome.error or b"")
                    assert await store.violations() == []

    perdure.run(main)


# Keys that change


async def keys_of(url: str, encryption: Encryption) -> dict[str, int]:
    """Return how many values there are under each key."""
    store = open_store(url, encryption=encryption)
    await store.open()
    try:
        found: dict[str, int] = {}
        for counted in (await count_by_key(store)).values():
            for key, number in counted.items():
                found[key] = found.get(key, 0) + number
        return found
    finally:
        await store.close()


async def rotated(url: str, encryption: Encryption, batch: int = 3) -> Any:
    store = open_store(url, encryption=encryption)
    await store.open()
    try:
        return await rotate_keys(store, batch)
    finally:
        await store.close()


def test_a_plain_store_is_encrypted_then_rotated_and_then_plain_again(url: str) -> None:
    stored, shown = scenario(url, None)
    assert found_in(stored)

    async def main() -> str:
        assert set(await keys_of(url, KEYS)) == {""}
        first = await rotated(url, KEYS)
        assert (first.key, first.left, first.others) == (KEYS.writes, {}, {})
        assert first.changed > 20
        assert set(await keys_of(url, KEYS)) == {KEYS.writes}
        second = await rotated(url, BOTH)
        assert (second.key, second.changed) == (BOTH.writes, first.changed)
        again = await rotated(url, BOTH)
        assert (again.changed, again.left) == (0, {})
        assert set(await keys_of(url, BOTH)) == {BOTH.writes}
        app = App(url, encryption=Encryption([NEW]))  # the old key is not needed any more
        async with app:
            (job,) = [each for each in await app.find_jobs() if each.key == "one"]
            seen = await shown_to_all(app, await app.handle(job.id))
            store = await app.store()
            assert await store.violations() == []
        back = await rotated(url, Encryption([PLAIN, NEW]))
        assert back.key == PLAIN
        assert set(await keys_of(url, Encryption(()))) == {""}
        return seen

    seen = perdure.run(main)
    assert found_in(seen.encode()) == found_in(shown.encode()) - {"progress"}  # its worker is gone
    assert b"CANARY" in raw(url)


def test_keys_are_rotated_while_workers_run(url: str) -> None:
    async def main() -> None:
        app = App(url, worker=QUICK, encryption=BOTH)
        greets = greeting(app)
        old = App(url, worker=QUICK, encryption=Encryption([OLD, NEW]))
        theirs = greeting(old)
        async with app, old, app.running():
            first = [await old.submit(theirs(f"old {n}")) for n in range(30)]
            again = [await app.submit(greets(f"new {n}")) for n in range(30)]
            report = await rotated(url, BOTH)
            assert report.others == {}
            for n, (one, two) in enumerate(zip(first, again, strict=True)):
                assert await one.result("30s") == f"{word('result')} old {n}"
                assert await two.result("30s") == f"{word('result')} new {n}"
            last = await rotated(url, BOTH)
            assert last.left == {}
            assert set(await keys_of(url, BOTH)) == {BOTH.writes}
            assert await (await app.store()).violations() == []

    perdure.run(main)


def test_a_worker_that_writes_with_the_old_key_is_named(url: str) -> None:
    async def main() -> None:
        app = App(url, worker=QUICK, encryption=Encryption([OLD, NEW]))
        greets = greeting(app)
        async with app, app.running():
            await (await app.submit(greets("kim"))).result("20s")
            report = await rotated(url, BOTH)
            assert list(report.others.values()) == [KEYS.writes]
            store = await app.store()
            assert set(await store.store_keys()) == {KEYS.writes, BOTH.writes}

    perdure.run(main)


ROTATES = """
import asyncio, os, signal, sys
from perdure import Encryption
from perdure.cli import keys
from perdure.store.open import open_store

async def main():
    store = open_store(sys.argv[1], encryption=Encryption(sys.argv[3:]))
    await store.open()
    batches = int(sys.argv[2])
    reseal = store.reseal
    async def counted(*args):
        nonlocal batches
        page = await reseal(*args)
        batches -= bool(page.changed)
        if not batches:
            os.kill(os.getpid(), signal.SIGKILL)
        return page
    store.reseal = counted
    await keys.rotate_keys(store, 2)

asyncio.run(main())
"""


def test_a_rotation_that_is_killed_goes_on_when_it_is_repeated(url: str) -> None:
    ids = greeted(url, KEYS, *"abcdef")
    root = Path(__file__).parent.parent.parent
    for batches in ("1", "3"):
        command = [sys.executable, "-c", ROTATES, url, batches, NEW, OLD]
        done = subprocess.run(command, cwd=root, timeout=50, check=False)
        assert done.returncode == -signal.SIGKILL
        found = asyncio.run(keys_of(url, BOTH))
        assert set(found) == {KEYS.writes, BOTH.writes}
    report = asyncio.run(rotated(url, BOTH))
    assert (report.left, report.others) == ({}, {})
    assert set(asyncio.run(keys_of(url, BOTH))) == {BOTH.writes}

    async def main() -> None:
        async with Client(url, encryption=Encryption([NEW])) as client:
            for job_id, name in zip(ids, "abcdef", strict=True):
                handle = await client.handle(job_id)
                assert await handle.result("5s") == f"{word('result')} {name}"

    perdure.run(main)


@pytest.mark.once
def test_the_command_line_makes_lists_and_rotates_keys(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    key = shown_by(url, "keys", "generate").split()[-1]
    assert Encryption([key]).writes
    greeted(url, None, "kim")
    assert "no keys" in shown_by(url, "keys", "rotate", code=1)
    (plain,) = json.loads(shown_by(url, "keys", "list", "-ojson"))
    assert (plain["key"], plain["role"]) == (PLAIN, "-")
    assert "Nothing is left under another key" in shown_by(url, "keys", "rotate", keys=OLD)
    (sealed,) = json.loads(shown_by(url, "keys", "list", "-ojson", keys=OLD))
    assert (sealed["key"], sealed["role"]) == (KEYS.writes, "writes")
    assert sealed["values"] == plain["values"]
    both = json.loads(shown_by(url, "keys", "list", "-ojson", keys=f"{NEW},{OLD}"))
    assert [each["role"] for each in both] == ["writes", "reads"]
    shown = json.loads(shown_by(url, "keys", "rotate", "-ojson", keys=f"{NEW},{OLD}"))
    assert shown == {"key": BOTH.writes, "changed": shown["changed"], "left": {}, "others": {}}
    (lacked,) = json.loads(shown_by(url, "keys", "list", "-ojson"))
    assert (lacked["key"], lacked["role"]) == (BOTH.writes, "lacks it")
    assert BOTH.writes in shown_by(url, "keys", "rotate", keys=OLD, code=1)


class Bookings:
    """Jobs that wait, and can be undone, in a program that is started again at every stage."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.waiting: list[str] = []

    def program(self, keys: str) -> tuple[App, Any, list[str]]:
        given = Encryption.from_env({"PERDURE_ENCRYPTION_KEYS": keys}) or Encryption(())
        app, undone = App(self._url, worker=QUICK, encryption=given), list[str]()

        @app.step(retry=ONCE)
        async def book(what: str) -> str:
            return f"booked {what}"

        @book.compensate(retry=ONCE)
        async def unbook(ctx: StepContext, what: str, result: str) -> None:
            undone.append(f"{what}: {result}")

        @app.job
        async def trip(ctx: JobContext, what: str) -> str:
            booked = await book(what)
            return booked + await ctx.receive("go", kind=str)

        return app, trip, undone

    def stage(self, keys: str, beside: str | None = None, begins: int = 2) -> None:
        """End a job that was begun two stages ago, undo another, and begin some.

        Args:
            keys: The setting of this program.
            beside: That of another one whose worker runs at the same time.
            begins: How many.
        """

        async def main() -> None:
            app, trip, undone = self.program(keys)
            async with app, app.running():
                if beside is None:
                    await self._go_on(app, undone)
                else:
                    other, _, theirs = self.program(beside)
                    async with other, other.running():
                        await self._go_on(app, undone, theirs)
                        report = await rotated(self._url, app.encryption or KEYS)
                        assert report.others, "the other worker still writes with its own key"
                made = [await app.submit(trip(f"{keys[:9]} {n}")) for n in range(begins)]
                for handle in made:
                    while "receive:go#1" not in {each.id for each in await handle.journal()}:
                        await perdure.process.sleep("5ms")
                self.waiting += [handle.id for handle in made]

        perdure.run(main)

    async def _go_on(self, app: App, *undone: list[str]) -> None:
        if not self.waiting:
            return
        ends, undoes = [await app.handle(self.waiting.pop(0)) for _ in range(2)]
        await ends.send("go", " and gone")
        assert str(await ends.result("20s")).endswith(" and gone")
        await undoes.cancel()
        await undoes.wait("20s")
        await undoes.compensate()
        assert await undoes.until(JobState.COMPENSATED, timeout="20s") is JobState.COMPENSATED
        (done,) = [each for some in undone for each in some]
        what, _, result = done.partition(": ")
        assert result == f"booked {what}"


def test_jobs_go_on_through_the_documented_steps(url: str) -> None:
    """Turning on, changing the key and turning off, as docs/jobs/encryption.md has them."""
    bookings = Bookings(url)
    new = shown_by(url, "keys", "generate").split()[-1]
    bookings.stage("", begins=4)
    for keys in (f"plain,{OLD}", OLD):  # turning it on
        bookings.stage(keys)
    assert "Nothing is left" in shown_by(url, "keys", "rotate", keys=OLD)
    bookings.stage(OLD)
    bookings.stage(f"{OLD},{new}")  # changing the key
    bookings.stage(f"{new},{OLD}", beside=f"{OLD},{new}")
    assert "Nothing is left" in shown_by(url, "keys", "rotate", keys=f"{new},{OLD}")
    bookings.stage(new)
    bookings.stage(f"plain,{new}", beside=new)  # turning it off
    assert "Nothing is left" in shown_by(url, "keys", "rotate", keys=f"plain,{new}")
    bookings.stage("")


@pytest.mark.once
def test_a_key_is_refused_in_a_file_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("perdure.toml").write_text(f'encryption_keys = "{OLD}"\n')
    with pytest.raises(typer.Exit):
        apply({})
    Path("perdure.toml").write_text('encryption_keys_file = "keys"\n')
    Path("keys").write_text(OLD)
    environ: dict[str, str] = {}
    apply(environ)
    found = Encryption.from_env(environ)
    assert found is not None
    assert found.writes == KEYS.writes
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", OLD)
    done = CliRunner().invoke(make_app("config"), ["config", "show", "-ojson"])
    assert done.exit_code == 0
    assert OLD not in done.output
