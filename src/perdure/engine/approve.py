"""`ctx.approve`: a question that the code of a job asks by itself."""

from collections.abc import Iterable
from typing import Any, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import decode, encode
from perdure.base.duration import Duration, job_seconds
from perdure.base.errors import ApprovalExpired, ApprovalRejected
from perdure.engine.asking import (
    Question,
    ask,
    is_about,
    is_looked_at,
    last_asked,
    new_approval,
    usable_now,
)
from perdure.engine.operation import Operation
from perdure.engine.run import Run
from perdure.jobs.approval import Approval, ApprovalState, Terms
from perdure.jobs.definition import Step
from perdure.jobs.failure import failure_of
from perdure.jobs.gate import Opening
from perdure.jobs.model import Entry
from perdure.jobs.risk import Judgement, RiskLevel
from perdure.jobs.state import StepState


class Approved(Struct, frozen=True):
    """A yes: who said it, where, and why."""

    by: tuple[str, ...]
    reason: str = ""
    channel: str = ""


class _Said(Struct, frozen=True):
    """What is kept of an answer that is no yes."""

    title: str
    person: str | None = None  # None: nobody
    reason: str = ""

    def error(self) -> Exception:
        if self.person is None:
            return ApprovalExpired(f"nobody decided in time about {self.title!r}")
        return ApprovalRejected(self.title, self.person, self.reason)


class ApproveOptions(TypedDict, total=False):
    """What may be said of a question; see `JobContext.approve`."""

    details: Any
    risk: RiskLevel | str
    terms: Terms
    expires: Duration
    opens: Iterable[Step[..., Any]]


class Asked(Struct, frozen=True):
    """A question as the code asks it."""

    title: str
    packed: bytes
    details: Any
    level: RiskLevel
    terms: Terms
    opens: frozenset[str] | None


def asked_for(run: Run, title: str, options: ApproveOptions) -> Asked:
    """Make a question of what the code says."""
    level, opens = RiskLevel.of(options.get("risk", "high")), options.get("opens")
    names = None if opens is None else frozenset(run.node.registry.name(step) for step in opens)
    details = options.get("details")
    packed = encode([title, details, level.name, None if names is None else sorted(names)])
    terms = options.get("terms") or run.node.rules.terms_for(level)
    limit = job_seconds(options.get("expires"))
    terms = terms if limit is None else replace(terms, expires=limit)
    return Asked(title, packed, details, level, terms, names)


class Approve(Operation[Approved]):
    """A wait for a person."""

    __slots__ = ("_approval", "_asked")
    waits_for = "approval"

    def __init__(self, run: Run, entry: Entry, asked: Asked, *, recorded: bool) -> None:
        super().__init__(run, entry, recorded=recorded)
        self._asked = asked
        self._approval: str | None = None
        if entry.state is StepState.SUCCEEDED and entry.output is not None:
            self._say_yes(decode(entry.output, Approved))
        elif entry.state is StepState.FAILED and entry.output is not None:
            self.settle(None, decode(entry.output, _Said).error())

    def _say_yes(self, approved: Approved) -> None:
        asked = self._asked
        opening = Opening(self.entry.id, asked.packed, asked.level, asked.opens)
        self.run.openings = (*self.run.openings, opening)
        self.settle(approved)

    def start(self) -> None:
        self.run.work(self, self._look)

    def heard(self) -> None:
        if self in self.run.working:  # whatever it has just read may be old
            self.again = True
        else:
            self.run.work(self, self._look)

    async def _look(self) -> None:
        found = await last_asked(self.run, self.entry.id)
        if found is None or await self._is_over(found):
            found = new_approval(self.run, self._question(), found)
            if not await ask(self.run, found, self.entry):
                return
        self._approval = found.id
        if found.state is ApprovalState.PENDING:
            self.run.wait(self)
        else:
            await self._answered(found)

    async def _is_over(self, found: Approval) -> bool:
        """Tell whether people must be asked again: it was about something else, or is void."""
        question = self._question()
        if not is_about(found, question, self.run):
            return True
        if found.state is ApprovalState.APPROVED:
            return not usable_now(self.run, found, question.action(self.run))
        ended = found.state is not ApprovalState.PENDING
        return ended and await is_looked_at(self.run, found)

    def _question(self) -> Question:
        asked = self._asked
        return Question(
            step=self.entry.id,
            title=asked.title,
            input=asked.packed,
            shown=asked.details or {},
            judgement=Judgement(asked.level),
            terms=asked.terms,
        )

    async def _answered(self, found: Approval) -> None:
        last = found.decisions[-1] if found.decisions else None
        if found.state is ApprovalState.APPROVED and last is not None:
            by = tuple(each.person for each in found.decisions if each.verdict == "approve")
            approved = Approved(by, last.reason, last.channel)
            await self.run.write(self._ended(StepState.SUCCEEDED, encode(approved, Approved)))
            self._say_yes(approved)
            return
        rejected = found.state is ApprovalState.REJECTED and last is not None
        said = _Said(found.title, last.person, last.reason) if rejected and last else None
        said = said or _Said(found.title)
        error = said.error()
        failed = self._ended(StepState.FAILED, encode(said, _Said))
        await self.run.write(replace(failed, error=failure_of(error).pack()))
        self.settle(None, error)

    def _ended(self, state: StepState, output: bytes) -> Entry:
        return replace(self.entry, state=state, output=output, ended_at=self.run.now())

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "approval": self._approval, "title": self._asked.title}
