"""Decisions of people made through the API of an app: the command line, a dashboard, a test.

Whether a vote counts is decided in one place, for all channels: `jobs.approval.decide`, in the
transaction of `store.vote`. This module does what comes before that: it identifies the person, and
checks the arguments that they have edited.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.base.errors import ArgumentError, DecisionRefused
from perdure.engine import events
from perdure.engine.policy import Policy
from perdure.jobs.approval import (
    Approval,
    Delegation,
    Edited,
    Person,
    Refusal,
    Vote,
    VoteVerdict,
)
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.definition import CLOSURE, Step, any_closure
from perdure.jobs.gate import gate_for, judge_call, judge_raise
from perdure.jobs.risk import Judgement
from perdure.notify.people import People
from perdure.store.store import Store


class ApprovalAnswer(Struct, frozen=True, kw_only=True):
    """The answer of a person to a question."""

    approval_id: str
    action_hash: str  # what they saw
    verdict: VoteVerdict
    by: Person | str
    reason: str = ""
    arguments: Mapping[str, Any] | None = None


class DecidingApp(Protocol):
    """What an app says about its steps, and about the people who decide."""

    policy: Policy

    @property
    def steps(self) -> Mapping[str, Step[..., Any]]: ...


async def decide(store: Store, app: DecidingApp, answer: ApprovalAnswer) -> Approval:
    """Submit an answer; return the approval as it is afterwards.

    Raises:
        DecisionRefused: The answer does not count.
        ArgumentError: The edited arguments do not fit the step.
    """
    approval = await _approval(store, answer.approval_id)
    edited = None
    if answer.arguments is not None:
        edited = await _edited(store, app, approval, answer.arguments)
    vote = Vote(
        person=await _person(store, app.policy.people, approval, answer.by),
        verdict=answer.verdict,
        action_hash=answer.action_hash,
        channel="api",
        reason=answer.reason,
        edited=edited,
    )
    result = await store.vote(approval.id, vote)
    if events.listens(events.APPROVAL_DECIDE):
        events.voted(result, vote)
    return _counted(result)


async def delegate(
    store: Store, people: People, approval_id: str, by: Person | str, to: str, reason: str
) -> Approval:
    """Let somebody else answer a question; return the approval as it is afterwards.

    Raises:
        DecisionRefused: This person may not delegate it, or the other one cannot decide.
    """
    approval = await _approval(store, approval_id)
    known = tuple(people.of(approval.tenant))
    other = Person(id=to, tenant=approval.tenant)
    if people.contacts:  # otherwise another program knows the people
        other = await _person(store, people, approval, to)
    if other.is_program:
        await store.audit_attempt(approval.id, "api", f"{to} is not a person")
        raise DecisionRefused("not allowed", "a service account cannot decide")
    by = await _person(store, people, approval, by)
    delegation = Delegation(by=by, to=other, reason=reason, known=known)
    return _counted(await store.delegate(approval.id, delegation))


async def _approval(store: Store, approval_id: str) -> Approval:
    approval = await store.approval(approval_id)
    if approval is None:
        raise DecisionRefused("not found", "there is no such approval")
    return approval


async def _person(store: Store, people: People, approval: Approval, who: Person | str) -> Person:
    """Return the person, as listed among the people of the app if it lists any."""
    if isinstance(who, Person) and (not people.contacts or who.tenant != approval.tenant):
        return who
    name = who.id if isinstance(who, Person) else who
    known = people.by_id(approval.tenant, name)
    if known is None:
        await store.audit_attempt(approval.id, "api", f"unknown person {name!r}")
        text = f"unknown person {name!r}: list them in Policy(people=…) of the app"
        raise DecisionRefused("not allowed", text)
    return replace(known, makers=who.makers) if isinstance(who, Person) else known


def _counted(result: Approval | Refusal) -> Approval:
    if isinstance(result, Refusal):
        raise DecisionRefused(result.code, result.text)
    return result


# Edited arguments


async def _edited(
    store: Store, app: DecidingApp, approval: Approval, arguments: Mapping[str, Any]
) -> Edited:
    """Check edited arguments, and judge them as those of the job were judged."""
    if approval.action.budget != b"null":  # it is about the budget itself
        packed = msgspec.json.encode(_limits(approval, arguments))
        return _judged(app.policy, packed, judge_raise(packed, app.policy.risk))
    entry = next((e for e in await store.journal(approval.job_id) if e.id == approval.step), None)
    step = None if entry is None else app.steps.get(entry.name)
    if entry is not None and entry.name.startswith(CLOSURE):
        step = any_closure(entry.name, approval.risk)  # its job judges the arguments once more
    if entry is None or step is None:
        raise DecisionRefused("changed", "only the arguments of a step can be edited")
    # What the person did not name stays as it is stored; defaults never replace it.
    packed = step.parameters.edited(approval.action.input, arguments)
    judgement = judge_call(step, entry.name, packed, app.policy.risk)
    gate = gate_for(step, entry.name, approval.tenant, judgement, app.policy.gates)
    return _judged(app.policy, packed, gate.judgement)


def _judged(policy: Policy, packed: bytes, judgement: Judgement) -> Edited:
    level = judgement.level
    terms = policy.terms_for(level)
    return Edited(input=packed, risk=level, reasons=judgement.reasons, terms=terms)


def _limits(approval: Approval, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits that a person grants instead of the requested ones."""
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
