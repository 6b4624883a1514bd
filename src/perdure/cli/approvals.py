"""`perdure approvals`: list what jobs ask people, and answer."""

import getpass
from typing import Annotated, Any, cast

import typer
from rich.table import Table

from perdure.base.codec import parse, write_plain
from perdure.base.errors import Unstorable
from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    cell,
    give_one,
    give_table,
    perform,
    refuse,
    say,
)
from perdure.cli.output import show as show_lines
from perdure.cli.target import AppOption, UrlOption, find_caller, short
from perdure.engine.caller import Caller
from perdure.jobs.approval import Approval, ApprovalState, Person, VoteVerdict
from perdure.jobs.redaction import for_people
from perdure.notify.message import SHORT_HASH, approval_message, before_edits, spell_time

IdArgument = Annotated[
    str, typer.Argument(metavar="APPROVAL", help="The id of the approval, or its first characters.")
]
ByOption = Annotated[str, typer.Option("--by", help="Who decides; by default you.")]
ActionOption = Annotated[
    str | None,
    typer.Option(
        "--action",
        metavar="HASH",
        help="The action that you saw, as `show` prints it; by default you are shown it and asked.",
    ),
]
_PAGE = 1000
_NOBODY_LISTED = (
    "no people are listed who may decide: list them in the app's Policy(people=…), and name the "
    "app with --app, PERDURE_APP or perdure.toml; or decide in the dashboard"
)

ReasonOption = Annotated[str, typer.Option("--reason", "-r", help="For the audit log.")]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="List and answer what jobs ask people.", no_args_is_help=True)
    group.command("list")(list_approvals)
    for command in (show, reveal, approve, reject, delegate):
        group.command()(command)
    app.add_typer(group, name="approvals")


def list_approvals(
    *,
    state: Annotated[ApprovalState, typer.Option("--state", "-s", case_sensitive=False)] = (
        ApprovalState.PENDING
    ),
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List approvals, newest first; by default those that are pending."""
    found = perform(_list, find_caller(app, url), state, tenant)
    rows = [approval_as_json(each) for each in found]
    give_table(rows, output, lambda: _drawn(found), empty=f"No approval is {state.lower()}.")


async def _list(app: Caller, state: ApprovalState, tenant: str | None) -> list[Approval]:
    found: list[Approval] = []
    async with app:
        while page := await app.approvals(
            state, tenant=tenant, limit=_PAGE, before=found[-1] if found else None
        ):
            found += page
    return found


def _drawn(found: list[Approval]) -> Table:
    table = Table("id", "risk", "what", "job", "asked by", "asked", "expires", box=None)
    for each in found:
        card = approval_message(each)
        asked, ends = spell_time(each.created_at), each.expires_at
        expires = "never" if ends is None else spell_time(ends)
        row = (each.id[:12], str(each.risk), card.title, short(each.job_id), each.requester or "-")
        table.add_row(*map(cell, (*row, asked, expires)))
    return table


def show(
    approval: IdArgument,
    *,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long texts and lists.")] = False,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show exactly what would be done, and the votes so far."""
    found = perform(_show, find_caller(app, url), approval)
    if not give_one(approval_as_json(found), output):
        _print(found, full=full)


def _print(found: Approval, *, full: bool) -> None:
    card = approval_message(found, full=full)
    lines = [card.title, card.note, *(f"  {name}: {value}" for name, value in card.fields)]
    lines += ["  Arguments:", *(f"    {name}: {value}" for name, value in card.arguments)]
    lines += ["  Why you are asked:"] if card.reasons else []
    lines += [f"    - {reason}" for reason in card.reasons]
    lines += [card.outcome, card.footer, f"In full: {card.in_full}" if card.in_full else ""]
    show_lines(*filter(None, lines))


async def _show(app: Caller, approval: str) -> Approval:
    async with app:
        return await find(app, approval)


def reveal(
    approval: IdArgument,
    *,
    by: ByOption = "",
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show the account numbers in the arguments; that you saw them is in the log of the job."""
    who = by or getpass.getuser()
    found = perform(_revealed, find_caller(app, url, shows_locked=False), approval, who)
    if not give_one(found, output):
        show_lines(write_plain(found["arguments"]).decode())


async def _revealed(app: Caller, approval: str, who: str) -> dict[str, Any]:
    async with app:
        found = await find(app, approval)
        return {"id": found.id, "arguments": await app.reveal(found, by=who)}


def approve(  # noqa: PLR0913 - the options of a command
    approval: IdArgument,
    *,
    action: ActionOption = None,
    by: ByOption = "",
    reason: ReasonOption = "",
    arguments: Annotated[
        str | None,
        typer.Option(
            help="Approve with other arguments, as a JSON object; the rest stay as shown."
        ),
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
) -> None:
    """Approve an action."""
    who = by or getpass.getuser()
    said = {"verdict": "approve", "by": who, "reason": reason, "arguments": arguments}
    _decide(find_caller(app, url, needs_code=True), approval, action, said)


def reject(
    approval: IdArgument,
    *,
    action: ActionOption = None,
    by: ByOption = "",
    reason: ReasonOption = "",
    url: UrlOption = None,
    app: AppOption = None,
) -> None:
    """Reject an action."""
    said = {"verdict": "reject", "by": by or getpass.getuser(), "reason": reason}
    _decide(find_caller(app, url, needs_code=True), approval, action, said)


def _decide(app: Caller, approval: str, action: str | None, said: dict[str, Any]) -> None:
    found = perform(_show, app, approval)
    seen = _seen(found, action, said["verdict"], said.get("arguments"))
    result = perform(_decided, app, found, {**said, "action_hash": seen})
    card = approval_message(result)
    if result.action != found.action and card.outcome == "":
        say("You edited the arguments: everybody is asked again.")
    else:
        say(card.outcome or "Your vote counts; others must vote too.")


def _seen(found: Approval, action: str | None, verdict: VoteVerdict, arguments: str | None) -> str:
    """Return the hash of the action that the person saw, or sees now."""
    if action is None:
        _print(found, full=True)
        if arguments is not None:
            show_lines(f"Changed arguments: {arguments}")
        if not _confirmed(verdict, "exactly this" if arguments is None else "it with this change"):
            refuse("nothing was decided", Code.CONFLICT)
        return found.action.hash
    if len(action) < SHORT_HASH:
        refuse(f"--action needs {SHORT_HASH} characters of the hash, not {len(action)}", Code.USAGE)
    return found.action.hash if found.action.hash.startswith(action.lower()) else action


def _confirmed(verdict: VoteVerdict, what: str) -> bool:
    try:
        return typer.confirm(f"{verdict.capitalize()} {what}?", err=True)
    except typer.Abort:
        refuse(
            "pass the action that you saw: --action HASH, as `approvals show` prints it", Code.USAGE
        )


async def _decided(app: Caller, found: Approval, said: dict[str, Any]) -> Approval:
    if said.get("arguments") is not None:
        said["arguments"] = _arguments(said["arguments"])
    async with app:
        person = _person(app, found, said.pop("by"))
        return await app.decide(found.id, by=person, **said)


def _arguments(text: str) -> dict[str, Any]:
    given = parse(text, "the arguments")
    if not isinstance(given, dict):
        raise Unstorable("the arguments must be a JSON object with one field per parameter")
    return cast("dict[str, Any]", given)


def delegate(
    approval: IdArgument,
    *,
    to: Annotated[str, typer.Option("--to", help="Who decides instead.")],
    by: ByOption = "",
    reason: ReasonOption = "",
    url: UrlOption = None,
    app: AppOption = None,
) -> None:
    """Delegate a decision; you lose your own vote."""
    who = by or getpass.getuser()
    found = perform(_delegated, find_caller(app, url, needs_code=True), approval, to, who, reason)
    say(f"{to} may decide {approval_message(found).title!r} instead of {who}.")


async def _delegated(app: Caller, approval: str, to: str, by: str, reason: str) -> Approval:
    async with app:
        found = await find(app, approval)
        return await app.delegate(found.id, to=to, by=_person(app, found, by), reason=reason)


def _person(app: Caller, approval: Approval, name: str) -> Person:
    """Return the person with this name. Nothing proves it, but an unknown person has no role."""
    people = app.policy.people
    if not people.contacts and not approval.terms.approvers:
        say(_NOBODY_LISTED, err=True)
    return people.by_id(approval.tenant, name) or Person(id=name, tenant=approval.tenant)


async def find(app: Caller, approval: str) -> Approval:
    """Return the approval whose id is, or starts with, this text."""
    store = await app.store()
    if (whole := await store.approval(approval)) is not None:
        return whole
    found = [each for each in await app.approvals(None, limit=1000) if each.id.startswith(approval)]
    if len(found) != 1:
        what = "no approval starts with" if not found else f"{len(found)} approvals start with"
        refuse(f"{what} {approval!r}", Code.NOT_FOUND)
    return found[0]


def approval_as_json(approval: Approval) -> dict[str, Any]:
    """Return an approval for programs."""
    return {
        "id": approval.id,
        "state": approval.state.value,
        "title": approval.title,
        "description": approval.description,
        "job": approval.job_id,
        "step": approval.step,
        "tenant": approval.tenant,
        "risk": str(approval.risk),
        "reasons": list(approval.reasons),
        "requester": approval.requester,
        "arguments": for_people(approval.shown),
        "edited_by": [each.person for each in approval.edits],
        "arguments_before": before_edits(approval),
        "action_hash": approval.action.hash,
        "created_at": approval.created_at,
        "expires_at": approval.expires_at,
        "delegates": [{"from": whose, "to": to} for whose, to in approval.delegates],
        "decisions": [
            {"by": each.person, "verdict": each.verdict, "reason": each.reason, "at": each.at}
            for each in approval.decisions
        ],
    }
