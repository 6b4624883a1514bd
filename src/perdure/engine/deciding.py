"""Answers of people that come through the API of an app: the command line, a dashboard, a test."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.base.errors import ArgumentError, DecisionRefused
from perdure.engine import tell
from perdure.engine.spending import RAISE
from perdure.jobs.approval import Action, Approval, Person, Refusal, Verdict, Vote
from perdure.jobs.budget import Limits
from perdure.jobs.registry import Registry
from perdure.notify.people import People
from perdure.store.port import Store


class Answer(Struct, frozen=True, kw_only=True):
    """What somebody says to a question."""

    approval_id: str
    verdict: Verdict
    by: Person | str
    reason: str = ""
    arguments: Mapping[str, Any] | None = None


async def decide(store: Store, registry: Registry, people: People, answer: Answer) -> Approval:
    """Hand an answer in.

    Raises:
        DecisionRefused: It does not count.
        ArgumentError: The edited arguments do not fit the step.
    """
    approval = await _approval(store, answer.approval_id)
    vote = Vote(
        person=await _person(store, people, approval, answer.by),
        verdict=answer.verdict,
        action_hash=approval.action.hash,
        channel="api",
        reason=answer.reason,
        edited=await _edited(store, registry, approval, answer.arguments),
    )
    return _counted(tell.voted(await store.vote(approval.id, vote), vote))


class Handover(Struct, frozen=True, kw_only=True):
    """Who wants to leave a question to whom."""

    approval_id: str
    by: Person | str
    to: str
    reason: str = ""


async def delegate(store: Store, people: People, handover: Handover) -> Approval:
    """Leave a question to somebody else.

    Raises:
        DecisionRefused: This person may not, or the other one cannot take it.
    """
    approval = await _approval(store, handover.approval_id)
    by = await _person(store, people, approval, handover.by)
    if people.contacts:  # else who decides is known elsewhere
        other = await _person(store, people, approval, handover.to)
        if other.is_program:
            await store.turned_away(approval.id, "api", f"{handover.to} is no person")
            raise DecisionRefused("not allowed", "an account of a program cannot decide")
    return _counted(await store.pass_on(approval.id, by, handover.to, handover.reason))


async def _approval(store: Store, approval_id: str) -> Approval:
    approval = await store.approval(approval_id)
    if approval is None:
        raise DecisionRefused("not found", "there is no such approval")
    return approval


async def _person(store: Store, people: People, approval: Approval, who: Person | str) -> Person:
    if isinstance(who, Person):
        return who
    known = people.by_id(approval.tenant, who)
    if known is None:
        await store.turned_away(approval.id, "api", f"{who} is nobody we know")
        raise DecisionRefused("not allowed", f"{who} is nobody that this app knows")
    return known


def _counted(result: Approval | Refusal) -> Approval:
    if isinstance(result, Refusal):
        raise DecisionRefused(result.code, result.text)
    return result


def _limits(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check the limits that a person grants instead of those that were asked for."""
    try:
        limits = msgspec.convert(dict(arguments), Limits)
    except msgspec.ValidationError as error:
        raise ArgumentError("the limits of a budget", [str(error)]) from None
    return {name: value for name, value in msgspec.to_builtins(limits).items() if value is not None}


async def _edited(
    store: Store, registry: Registry, approval: Approval, arguments: Mapping[str, Any] | None
) -> Action | None:
    if arguments is None:
        return None
    if approval.step.endswith(RAISE):
        return replace(approval.action, input=msgspec.json.encode(_limits(arguments)))
    entry = next((e for e in await store.journal(approval.job_id) if e.id == approval.step), None)
    if entry is None or entry.name not in registry.steps:
        raise DecisionRefused("changed", "only the arguments of a step can be edited")
    step = registry.find_step(entry.name)
    packed = step.parameters.pack_json(msgspec.json.encode(arguments))
    return replace(approval.action, input=packed)
