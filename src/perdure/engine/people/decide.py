"""Answers of people that come through the API of an app: the command line, a dashboard, a test."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from perdure.base.errors import ArgumentError, DecisionRefused
from perdure.engine import events
from perdure.engine.policy import Policy
from perdure.jobs.approval import (
    Approval,
    ApprovalLink,
    Delegation,
    Edited,
    LinkUse,
    Person,
    Refusal,
    Vote,
    VoteVerdict,
)
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.definition import Step
from perdure.jobs.gate import gate_for, judge_call, judge_raise
from perdure.jobs.risk import Judgement
from perdure.notify.people import People
from perdure.store.store import Store


class ApprovalAnswer(Struct, frozen=True, kw_only=True):
    """What somebody says to a question."""

    approval_id: str
    action_hash: str  # what they saw
    verdict: VoteVerdict
    by: Person | str
    reason: str = ""
    arguments: Mapping[str, Any] | None = None


class Office(Protocol):
    """An app, as far as it is needed here: what there is, and by which policy."""

    policy: Policy

    @property
    def steps(self) -> Mapping[str, Step[..., Any]]: ...


async def decide(store: Store, office: Office, answer: ApprovalAnswer) -> Approval:
    """Hand an answer in.

    Raises:
        DecisionRefused: It does not count.
        ArgumentError: The edited arguments do not fit the step.
    """
    approval = await _approval(store, answer.approval_id)
    edited = None
    if answer.arguments is not None:
        edited = await _edited(store, office, approval, answer.arguments)
    vote = Vote(
        person=await _person(store, office.policy.people, approval, answer.by),
        verdict=answer.verdict,
        action_hash=answer.action_hash,
        channel="api",
        reason=answer.reason,
        edited=edited,
    )
    return _counted(events.voted(await store.vote(approval.id, vote), vote))


async def delegate(
    store: Store, people: People, approval_id: str, by: Person | str, to: str, reason: str
) -> Approval:
    """Leave a question to somebody else.

    Raises:
        DecisionRefused: This person may not, or the other one cannot take it.
    """
    approval = await _approval(store, approval_id)
    known = tuple(people.of(approval.tenant))
    other = Person(id=to, tenant=approval.tenant)
    if people.contacts:  # else who decides is known elsewhere
        other = await _person(store, people, approval, to)
    if other.is_program:
        await store.turned_away(approval.id, "api", f"{to} is no person")
        raise DecisionRefused("not allowed", "an account of a program cannot decide")
    by = await _person(store, people, approval, by)
    handover = Delegation(by=by, to=other, reason=reason, known=known)
    return _counted(await store.pass_on(approval.id, handover))


async def _approval(store: Store, approval_id: str) -> Approval:
    approval = await store.approval(approval_id)
    if approval is None:
        raise DecisionRefused("not found", "there is no such approval")
    return approval


async def _person(store: Store, people: People, approval: Approval, who: Person | str) -> Person:
    """Find out who somebody is: as the app's people say, if it lists any."""
    if isinstance(who, Person) and (not people.contacts or who.tenant != approval.tenant):
        return who
    name = who.id if isinstance(who, Person) else who
    known = people.by_id(approval.tenant, name)
    if known is None:
        await store.turned_away(approval.id, "api", f"unknown person {name!r}")
        text = f"unknown person {name!r}: list them in Policy(people=…) of the app"
        raise DecisionRefused("not allowed", text)
    return known


def _counted(result: Approval | Refusal) -> Approval:
    if isinstance(result, Refusal):
        raise DecisionRefused(result.code, result.text)
    return result


# Edited arguments


async def _edited(
    store: Store, office: Office, approval: Approval, arguments: Mapping[str, Any]
) -> Edited:
    """Check other arguments, and judge them as those were that the job gave."""
    if approval.action.budget != b"null":  # it is about the budget itself
        packed = msgspec.json.encode(_limits(approval, arguments))
        return _judged(office.policy, packed, judge_raise(packed, office.policy.risk))
    entry = next((e for e in await store.journal(approval.job_id) if e.id == approval.step), None)
    step = None if entry is None else office.steps.get(entry.name)
    if entry is None or step is None:
        raise DecisionRefused("changed", "only the arguments of a step can be edited")
    # What the person did not name stays as it was seen, and never falls back to a default.
    before = msgspec.json.decode(approval.action.input, type=dict[str, Any])
    packed = step.parameters.pack_json(msgspec.json.encode({**before, **arguments}))
    judgement = judge_call(step, entry.name, packed, office.policy.risk)
    gate = gate_for(step, entry.name, approval.tenant, judgement, office.policy.gates)
    return _judged(office.policy, packed, gate.judgement)


def _judged(policy: Policy, packed: bytes, judgement: Judgement) -> Edited:
    level = judgement.level
    terms = policy.terms_for(level)
    return Edited(input=packed, risk=level, reasons=judgement.reasons, terms=terms)


def _limits(approval: Approval, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check the limits that a person grants instead of those that were asked for."""
    what = "the limits of a budget"
    try:
        limits = msgspec.convert(dict(arguments), BudgetLimits)
    except msgspec.ValidationError as error:
        raise ArgumentError(what, [str(error)]) from None
    given = {name: each for name, each in msgspec.to_builtins(limits).items() if each is not None}
    before = msgspec.json.decode(approval.action.budget, type=dict[str, float])
    if too_low := [name for name, limit in before.items() if given.get(name, limit) <= limit]:
        texts = [f"`{name}` must be more than {before[name]:g}, or reject it" for name in too_low]
        raise ArgumentError(what, texts)
    return given


# The desk of an app: where its channels find approvals, before the store is open.


class LazyStore:
    """Opens the store when it is first asked for something; see `perdure.notify.people.Desk`."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store

    async def now(self) -> float:
        return await (await self._store()).now()

    async def approval(self, approval_id: str) -> Approval | None:
        return await (await self._store()).approval(approval_id)

    async def vote(
        self, approval_id: str, vote: Vote, use: LinkUse | None = None
    ) -> Approval | Refusal:
        return events.voted(await (await self._store()).vote(approval_id, vote, use), vote)

    async def keep_link(self, link: ApprovalLink) -> None:
        await (await self._store()).keep_link(link)

    async def link(self, link_id: str) -> tuple[ApprovalLink, Approval] | None:
        return await (await self._store()).link(link_id)

    async def turned_away(self, approval_id: str | None, channel: str, why: str) -> None:
        await (await self._store()).turned_away(approval_id, channel, why)
