"""Answers of people that come through the API of an app: the command line, a dashboard, a test."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.base.errors import ArgumentError, DecisionRefused
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
    approval = await store.approval(answer.approval_id)
    if approval is None:
        raise DecisionRefused("not found", "there is no such approval")
    person = answer.by
    if isinstance(person, str):
        known = people.by_id(approval.tenant, person)
        if known is None:
            await store.turned_away(approval.id, "api", f"{person} is nobody we know")
            raise DecisionRefused("not allowed", f"{person} is nobody that this app knows")
        person = known
    vote = Vote(
        person=person,
        verdict=answer.verdict,
        action_hash=approval.action.hash,
        channel="api",
        reason=answer.reason,
        edited=await _edited(store, registry, approval, answer.arguments),
    )
    result = await store.vote(approval.id, vote)
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
