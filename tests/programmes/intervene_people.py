"""People, as `intervene` plays them: they answer, look at the receiver, and let jobs go on."""

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress

from perdure.app import App
from perdure.base.errors import ArgumentError, JobError
from perdure.jobs.approval import Approval
from perdure.jobs.failure import Failure
from perdure.jobs.model import Job, JobQuery
from perdure.jobs.on_failure import UNDO_QUESTION
from perdure.jobs.state import JobState
from tests.programmes.intervene_jobs import APPROVERS, OPERATOR
from tests.programmes.intervene_primitives import mail
from tests.programmes.receiver import call

_PATIENCE = 4  # so often a job is told to go on before it is undone, or cancelled


class People:
    """They look at the store and at the receiver, and at nothing else."""

    def __init__(self, app: App, port: int, chance: random.Random, wrong: list[str]) -> None:
        self.app = app
        self._port = port
        self._chance = chance
        self._wrong = wrong
        self._told = Counter[str]()  # how often each parked job was told to go on
        self._written: set[str] = set()  # jobs that have got all their mail
        self.did = Counter[str]()
        self.refused = Counter[str]()  # what a parked job would not take

    # Questions

    async def answer(self, *, eager: bool) -> None:
        """Answer some of the open questions; if eager, all of them, and with yes."""
        for asked in await self.app.approvals(limit=1000 if eager else 20):
            if eager or self._chance.random() < 0.5:
                at_once = 2 if self._chance.random() < 0.2 else 1
                answers = (self._answer(asked, eager=eager) for _ in range(at_once))
                await asyncio.gather(*answers)

    async def _answer(self, asked: Approval, *, eager: bool) -> None:
        with suppress(JobError):
            await self._decide(asked, eager=eager)

    async def _decide(self, asked: Approval, *, eager: bool) -> None:
        self._look_at(asked)
        said = {decision.person for decision in asked.decisions}
        left = [name for name in APPROVERS if name not in said] or list(APPROVERS)
        by = self._chance.choice(left)
        doubts = 0.5 if asked.step == UNDO_QUESTION else 0.1
        if not eager and self._chance.random() < doubts:
            await self.app.decide(asked, "reject", by=by)
            self.did["reject"] += 1
        elif not eager and asked.step.startswith("charge_if") and self._chance.random() < 0.3:
            await self._edit(asked, by)
        else:
            await self.app.decide(asked, "approve", by=by)
            self.did["approve"] += 1

    async def _edit(self, asked: Approval, by: str) -> None:
        usd = self._chance.choice([3, 70, 1000])
        with suppress(ArgumentError):
            await self.app.decide(asked, "approve", by=by, arguments={"usd": usd})
            self.did["edit"] += 1

    def _look_at(self, asked: Approval) -> None:
        """See that what a person is shown is what would be run."""
        if asked.step.startswith("charge_if"):
            shown, run = json.loads(asked.shown), json.loads(asked.action.input)
            if shown != run:
                self._wrong.append(
                    f"job {asked.job_id}: approval {asked.id} shows {shown}, and {run} would run"
                )

    # Doubts

    async def settle_doubts(self) -> None:
        """Say of each effect in doubt what the receiver says of it."""
        store = await self.app.store()
        for line in await store.open_effects(limit=1000):
            if line.state == "IN_DOUBT":
                with suppress(JobError):
                    await self._settle(line.job_id, line.no, line.key)

    async def _settle(self, job_id: str, no: int, key: str) -> None:
        answer = await call(self._port, op="query", key=key)
        if "unknown" in answer:
            return
        handle = await self.app.handle(job_id)
        if "happened" in answer:
            await handle.resolve(no, "happened", result=answer["happened"], by=OPERATOR)
        else:
            await handle.resolve(no, "did not happen", by=OPERATOR)
        self.did["resolve"] += 1

    # Jobs that wait

    async def help(self, *, writes: bool = False) -> list[Job]:
        """Let every job that waits for a person go on; give those that have not ended.

        If it writes, every job gets its mail, also one that happens to do something else just now.
        """
        await self.answer(eager=True)
        await self.settle_doubts()
        live = await self.live()
        for job in live:
            with suppress(JobError):
                await self._help(job)
                if writes and job.id not in self._written:
                    await self._write(job)
                    self._written.add(job.id)
        return live

    async def live(self) -> list[Job]:
        """List the jobs that have not ended."""
        states = (
            *(JobState.PENDING, JobState.RUNNING, JobState.WAITING, JobState.PAUSED),
            *(JobState.COMPENSATING, JobState.NEEDS_ATTENTION),
        )
        return await self.app.find_jobs(JobQuery(states=states, limit=10_000))

    async def _help(self, job: Job) -> None:
        handle = await self.app.handle(job.id)
        if job.state is JobState.PAUSED:
            await handle.resume(by=OPERATOR)
        elif job.state is JobState.WAITING and b'"message"' in (job.wait or b""):
            await self._write(job)
        elif job.state is JobState.NEEDS_ATTENTION:
            await self._let_go_on(job)

    async def _write(self, job: Job) -> None:
        """Send all that a job must get; what was sent before is recognised by its key."""
        for topic, key in mail(job):
            await self.app.send(job.id, topic, key, key=key)

    async def _let_go_on(self, job: Job) -> None:
        handle, told = await self.app.handle(job.id), self._told[job.id]
        if any(line.state == "IN_DOUBT" for line in await handle.effects()):
            return
        self._told[job.id] += 1
        commands = [handle.resume] * _PATIENCE + [handle.compensate, handle.cancel]
        command = commands[told % len(commands)]
        try:
            await command("nothing stands in the way any more", by=OPERATOR)
        except JobError:
            self.refused[job.id] += 1
            raise
        self.did["let go on"] += 1


def said(job: Job) -> str:
    """Spell what a job says of itself."""
    why = "" if job.error is None else f", because {Failure.unpack(job.error).summary()[:200]}"
    wait = None if job.wait is None else job.wait.decode()[:200]
    return f"{job.name} is {job.state}{why}, epoch {job.epoch}, waits for {wait}"
