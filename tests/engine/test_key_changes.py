"""Jobs go on, and are undone, whatever happens to the keys of their store in between.

Every journey has two halves. Between them the program is stopped and started with other keys, and
what is stored may have been encrypted again, all of it or a part. The second half must end as it
does without encryption.
"""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import perdure
from perdure import Encryption, Retry
from perdure.app import App
from perdure.base.encryption import PLAIN, generate_key
from perdure.base.errors import JobError, JobFailed, KeyConflict, Permanent
from perdure.cli.keys import rotate_keys
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.jobs.state import JobState
from perdure.store.open import open_store
from perdure.store.sealing import TABLES
from tests.engine.test_approval import ANN
from tests.support.engine import QUICK, until
from tests.support.web_client import api_of

OLD, NEW = generate_key(), generate_key()
NONE = Encryption(())
ONCE = Retry(attempts=1)
GOING = ("cancelled", "resumed", "sent", "forked", "submitted again")
DOUBTED = ("resolved", "doubted and undone", "compensated", "skipped")
LARGE = ["a large payload"] * 20_000


class Change(NamedTuple):
    """Which keys a program has before and after, and what is encrypted again in between."""

    before: Encryption
    after: Encryption
    rotated: str = ""  # "half": every second row, "whole": all of them
    by: Encryption | None = None  # the keys of the rotation; None: those after it


CHANGES = {
    "no keys": Change(NONE, NONE),
    "one key": Change(Encryption([OLD]), Encryption([OLD])),
    "key changed": Change(Encryption([OLD]), Encryption([NEW, OLD])),
    "key changed, half rotated": Change(Encryption([OLD]), Encryption([NEW, OLD]), "half"),
    "half rotated, goes on with the old key": Change(
        Encryption([OLD]), Encryption([OLD, NEW]), "half", Encryption([NEW, OLD])
    ),
    "key changed and rotated": Change(
        Encryption([OLD]), Encryption([NEW]), "whole", Encryption([NEW, OLD])
    ),
    "switched on": Change(NONE, Encryption([OLD])),
    "switched on, half rotated": Change(NONE, Encryption([OLD]), "half"),
    "switched on and rotated": Change(NONE, Encryption([OLD]), "whole"),
    "switched off": Change(Encryption([OLD]), Encryption([PLAIN, OLD])),
    "switched off, half rotated": Change(Encryption([OLD]), Encryption([PLAIN, OLD]), "half"),
    "switched off and rotated": Change(Encryption([OLD]), NONE, "whole", Encryption([PLAIN, OLD])),
}


class Journeys:
    """Jobs that do a part before the change of keys, and the rest after it."""

    def __init__(self, app: App, folder: Path) -> None:
        self.app = app
        self.undone: list[str] = []
        self._database = f"sqlite:///{folder / 'users.db'}"
        self._steps()
        self._more_steps()
        self._jobs()

    def _steps(self) -> None:
        app, undone = self.app, self.undone

        @app.step(retry=ONCE)
        async def book(ctx: StepContext, what: str) -> str:
            return await ctx.effect("booking", lambda _: f"booked {what}", target=f"hotel {what}")

        @book.compensate(retry=ONCE)
        async def unbook(ctx: StepContext, what: str, result: str) -> str:
            undone.append(result)
            return f"cancelled {what}"

        @app.step(retry=ONCE)
        async def cancel_trip(ctx: StepContext, result: str) -> None:
            undone.append(result)

        @app.step(retry=ONCE)
        async def travel(ctx: StepContext, what: str) -> str:
            return await ctx.effect("trip", lambda _: f"paid {what}", target=what, undo=cancel_trip)

        @app.step(retry=ONCE)
        async def large(ctx: StepContext, what: str) -> list[str]:
            return LARGE

        @large.compensate(retry=ONCE)
        async def unlarge(ctx: StepContext, what: str, result: list[str]) -> None:
            undone.append(f"{len(result)} of {what}")

        self.book, self.travel, self.large = book, travel, large

    def _more_steps(self) -> None:
        app = self.app

        @app.step(retry=ONCE)
        async def notes(ctx: StepContext, what: str) -> str:
            return f"noted {what}"

        @app.step(retry=ONCE)
        async def breaks_once(ctx: StepContext, what: str) -> str:
            if what not in self._mended:
                raise Permanent(f"broken: {what}")
            return f"mended {what}"

        @app.step(retry=ONCE)
        async def doubtful(ctx: StepContext, what: str) -> str:
            async def lost(_: str) -> str:
                raise TimeoutError("no answer")

            return await ctx.effect("payment", lost, target=what)

        def write(ctx: SyncStepContext, db: Any, what: str) -> str:
            db.execute("CREATE TABLE IF NOT EXISTS line (what TEXT)")
            db.execute("INSERT INTO line VALUES (?)", (what,))
            return f"wrote {what}"

        self.write = app.transaction(self._database, name="write", retry=ONCE)(write)
        self.notes, self.breaks_once, self.doubtful = notes, breaks_once, doubtful
        self._mended: set[str] = set()

    def _jobs(self) -> None:  # noqa: C901  one job for each journey
        app, book = self.app, self.book

        @app.job
        async def child(ctx: JobContext, what: str) -> str:
            return await book(what)

        @app.job
        async def goes(ctx: JobContext, what: str, ending: str) -> list[Any]:
            done: list[Any] = [await book(what), await self.travel(what)]
            done += [len(await self.large(what)), await child(f"child of {what}")]
            done.append(await self.write(what))
            done.append(await ctx.receive("early", kind=str))
            said = await ctx.receive("go", kind=str)
            if ending == "fails":
                raise Permanent(f"failed after {said}")
            return [*done, said]

        @app.job
        async def retried(ctx: JobContext, what: str) -> list[str]:
            return [await self.notes(what), await self.breaks_once(what)]

        @app.job
        async def asks(ctx: JobContext, what: str) -> list[Any]:
            booked = await book(what)
            yes = await ctx.approve("Ship it?", details={"what": what})
            return [booked, *yes.by, yes.reason]

        @app.job
        async def doubts(ctx: JobContext, what: str) -> list[str]:
            return [await book(what), await self.doubtful(what)]

        @app.job
        async def chooses(ctx: JobContext, what: str) -> list[Any]:
            booked = await book(what)
            first = await ctx.first(ctx.receive("a", kind=str), ctx.receive("b", kind=str))
            return [booked, first.index, first.value]

        @app.job
        async def loops(ctx: JobContext, what: str, number: int) -> list[Any]:
            said = await ctx.receive("next", kind=str)
            await book(f"{what} {said}")
            if number < 3:
                await ctx.continue_as(loops(what, number + 1))
            return [what, number, said]

        self.goes, self.retried, self.asks, self.doubts = goes, retried, asks, doubts
        self.chooses, self.loops = chooses, loops

    # The first halves

    async def begin(self) -> dict[str, str]:
        """Bring every journey to where the keys are changed; return the ids of the jobs."""
        app = self.app
        made: dict[str, Handle[Any]] = {}
        for name in GOING:
            made[name] = await app.submit(self.goes(name, "ends"), key=name)
        made["failing"] = await app.submit(self.goes("failing", "fails"))
        made["retried"] = await app.submit(self.retried("retried"))
        made["approved"] = await app.submit(self.asks("approved"), user="kim")
        made["asked and cancelled"] = await app.submit(self.asks("asked and cancelled"), user="kim")
        for name in DOUBTED:
            made[name] = await app.submit(self.doubts(name))
        made["first"] = await app.submit(self.chooses("first"))
        made["continued"] = await app.submit(self.loops("continued", 1))
        for name in (*GOING, "failing"):
            await made[name].send("early", "early bird")
        await made["continued"].send("next", "one")
        await self._reach(made)
        await made["resumed"].pause()
        await app.schedules.put("nightly", "0 3 1 1 *", self.asks("scheduled"))
        async with api_of(app) as client:
            await self._post(client, "before")
        return {name: handle.id for name, handle in made.items()}

    async def _reach(self, made: dict[str, Handle[Any]]) -> None:
        await until(self.app, made["retried"].id, JobState.FAILED)
        for name in DOUBTED:
            await until(self.app, made[name].id, JobState.NEEDS_ATTENTION)
        waits = dict.fromkeys((*GOING, "failing"), "receive:go#1") | {
            "approved": "approve#1",
            "asked and cancelled": "approve#1",
            "first": "receive:b#1",
            "continued": "/1/receive:next#1",
        }
        for name, entry in waits.items():
            while entry not in {each.id for each in await made[name].journal()}:
                await perdure.process.sleep("5ms")
        for name in ("forked", "submitted again"):
            await made[name].send("go", "went")
            await made[name].result("20s")

    async def _post(self, client: Any, key: str) -> Any:
        body = {"name": "child", "arguments": {"what": "over HTTP"}}
        answer = await client.post("/api/v1/jobs", json=body, headers={"idempotency-key": key})
        assert answer.status_code in (200, 201, 202), answer.text
        return answer.json()

    # The second halves

    async def end(self, ids: dict[str, str]) -> dict[str, Any]:
        """End every journey; return how."""
        halves: dict[str, Callable[[Handle[Any]], Awaitable[Any]]] = {
            "cancelled": self._cancelled,
            "resumed": self._resumed,
            "sent": self._sent,
            "forked": self._forked,
            "submitted again": self._sent_again,
            "failing": self._failing,
            "retried": self._retried,
            "compensated": self._compensated,
            "skipped": self._skipped,
            "approved": self._approved,
            "asked and cancelled": self._cancelled,
            "resolved": self._resolved,
            "doubted and undone": self._doubted,
            "first": self._first,
            "continued": self._continued,
        }
        found: dict[str, Any] = {}
        for name, half in halves.items():
            handle = await self.app.handle(ids[name])
            try:
                found[name] = await half(handle)
            except (JobError, AssertionError, TimeoutError) as error:
                found[name] = f"{type(error).__name__}: {error}"
            found[f"{name}: states"] = [
                (entry.id, entry.state, entry.output) for entry in await handle.journal()
            ]
            found[f"{name}: effects"] = [
                (line.kind, line.target, line.state, line.result) for line in await handle.effects()
            ]
        found["undone"] = sorted(self.undone)
        found["schedules"] = [each.job.input for each in await self.app.schedules.list()]
        found["over HTTP"] = await self._over_http()
        rules = await (await self.app.store()).violations()
        found["violations"] = sorted((each.invariant, each.what) for each in rules)
        return found

    async def _over_http(self) -> Any:
        async with api_of(self.app) as client:
            known = {job.id for job in await self.app.find_jobs()}
            return (await self._post(client, "before"))["id"] in known

    async def _cancelled(self, handle: Handle[Any]) -> Any:
        await handle.cancel()
        assert await handle.wait("20s") is JobState.CANCELLED
        return await self._compensated(handle)

    async def _resumed(self, handle: Handle[Any]) -> Any:
        await handle.resume()
        return await self._sent(handle)

    async def _sent(self, handle: Handle[Any]) -> Any:
        await handle.send("go", "went")
        return await handle.result("20s")

    async def _sent_again(self, handle: Handle[Any]) -> Any:
        again = await self.app.submit(self.goes("submitted again", "ends"), key="submitted again")
        with pytest.raises(KeyConflict):
            await self.app.submit(self.goes("other", "ends"), key="submitted again")
        return again.new, await again.result("20s")

    async def _forked(self, handle: Handle[Any]) -> Any:
        fork = await handle.fork("receive:go#1")
        await fork.send("go", "forked")
        done = await fork.result("20s")
        other = await handle.fork("receive:go#1")
        await other.cancel()
        return done, await other.wait("20s"), [each.output for each in await fork.journal()]

    async def _failing(self, handle: Handle[Any]) -> Any:
        await handle.send("go", "went")
        with pytest.raises(JobFailed):
            await handle.result("20s")
        failure = await handle.failure()
        return await handle.status(), failure and failure.message

    async def _retried(self, handle: Handle[Any]) -> Any:
        self._mended.add("retried")
        await handle.retry()
        return await handle.result("20s")

    async def _compensated(self, handle: Handle[Any]) -> Any:
        await handle.compensate()
        return await handle.until(JobState.COMPENSATED, JobState.FAILED, timeout="20s")

    async def _skipped(self, handle: Handle[Any]) -> Any:
        await handle.skip("doubtful#1", "not needed", output="skipped", by="kim")
        return await handle.result("20s")

    async def _approved(self, handle: Handle[Any]) -> Any:
        (approval,) = [each for each in await self.app.approvals() if each.job_id == handle.id]
        await self.app.decide(approval, "approve", by=ANN, reason="fine")
        return await handle.result("20s")

    async def _resolved(self, handle: Handle[Any]) -> Any:
        (line,) = [each for each in await handle.effects() if each.kind == "payment"]
        await handle.resolve(line.no, "happened", result="paid", by="kim")
        return await handle.result("20s")

    async def _doubted(self, handle: Handle[Any]) -> Any:
        (line,) = [each for each in await handle.effects() if each.kind == "payment"]
        await handle.resolve(line.no, "compensate", by="kim")
        return await handle.wait("20s")

    async def _first(self, handle: Handle[Any]) -> Any:
        await handle.send("b", "second")
        return await handle.result("20s")

    async def _continued(self, handle: Handle[Any]) -> Any:
        await handle.send("next", "two")
        await handle.send("next", "three")
        return await handle.result("20s")


async def rotate(url: str, keys: Encryption, extent: str) -> None:
    """Encrypt what is stored again: all of it, or every second page of one row."""
    store = open_store(url, encryption=keys)
    await store.open()
    try:
        if extent == "whole":
            report = await rotate_keys(store, 50)
            assert (report.left, report.others) == ({}, {})
            return
        for table in TABLES:
            position, skips = None, False
            while True:
                page = (
                    await store.sealed_page(table, position, 1)
                    if skips
                    else await store.reseal(table, position, 1)
                )
                position, skips = page.position, not skips
                if position is None:
                    break
    finally:
        await store.close()


def travelled(url: str, folder: Path, change: Change) -> dict[str, Any]:
    """Return how every journey has ended."""
    folder.mkdir(exist_ok=True)

    async def main() -> dict[str, Any]:
        app = App(url, worker=QUICK, encryption=change.before)
        async with app, app.running():
            ids = await Journeys(app, folder).begin()
        if change.rotated:
            await rotate(url, change.by or change.after, change.rotated)
        app = App(url, worker=QUICK, encryption=change.after)
        async with app, app.running():
            return await Journeys(app, folder).end(ids)

    return perdure.run(main)


@pytest.fixture(scope="module")
def as_without_keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How every journey ends on a store that was never encrypted."""
    folder = tmp_path_factory.mktemp("plain")
    return travelled(f"sqlite:///{folder}/jobs.db", folder, CHANGES["no keys"])


@pytest.mark.parametrize("name", CHANGES)
def test_jobs_go_on_and_are_undone_across_a_change_of_keys(
    url: str, tmp_path: Path, name: str, as_without_keys: dict[str, Any]
) -> None:
    found = travelled(url, tmp_path / "users", CHANGES[name])
    differing = {
        key: (found[key], wanted) for key, wanted in as_without_keys.items() if found[key] != wanted
    }
    assert differing == {}
    with closing(sqlite3.connect(tmp_path / "users" / "users.db")) as database:
        lines = database.execute("SELECT what FROM line ORDER BY what").fetchall()
    assert lines == sorted(set(lines))  # no transaction was repeated
