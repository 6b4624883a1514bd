"""`perdure tokens`: make, list and revoke the tokens by which programs and people use the API."""

import getpass
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from perdure.base.duration import job_seconds
from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    cell,
    counted,
    give_one,
    give_table,
    perform,
    pour,
    refuse,
    say,
)
from perdure.cli.target import AppOption, UrlOption, find_caller
from perdure.engine.caller import Caller
from perdure.web.access.audit_trail import audited_verbs
from perdure.web.access.principal import COMMAND_LINE, Permission, Principal, Role
from perdure.web.access.sessions import link_path, local_operator, new_sign_in_link
from perdure.web.access.tokens import (
    MadeToken,
    NewToken,
    Token,
    create_token,
    listed,
    revoke_token,
)

_OF_A_PROGRAM = (
    "It is for a program: nobody signs in or decides with it. For a person, pass --person ID."
)


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        help="Create, list and revoke tokens of the API; sign in and out.", no_args_is_help=True
    )
    group.command()(create)
    group.command("list")(list_tokens)
    group.command()(revoke)
    group.command("sign-in")(sign_in)
    group.command("sign-out")(sign_out)
    app.add_typer(group, name="tokens")


def _operator() -> Principal:
    """Return who has the store itself, and with it everything."""
    roles = frozenset({Role.ADMIN, Role.APPROVER})
    return Principal(id=f"{getpass.getuser()}{COMMAND_LINE}", tenant=None, roles=roles)


def create(  # noqa: PLR0913  an option is a parameter
    name: Annotated[str, typer.Argument(help="What it is for.")],
    *,
    role: Annotated[list[Role], typer.Option(help="What it may do; repeatable.")],
    tenant: Annotated[
        str | None, typer.Option(help="The only tenant that it gives access to; by default all.")
    ] = None,
    person: Annotated[
        str,
        typer.Option(
            help="The person who signs in and decides with it; without one, it is for a program."
        ),
    ] = "",
    scope: Annotated[
        list[Permission] | None, typer.Option(help="Allow only this; repeatable.")
    ] = None,
    expires: Annotated[str, typer.Option(help="When it expires, from now.")] = "90d",
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Make a token, and show it: this once, and never again."""
    try:
        lifetime = job_seconds(expires) or 0.0
    except ValueError as error:
        refuse(str(error), Code.USAGE)
    asked = NewToken(
        name=name,
        roles=tuple(role),
        kind="person" if person else "service",
        principal=person,
        scopes=tuple(scope) if scope else None,
        lifetime=lifetime,
    )
    made = perform(_create, find_caller(app, url), asked, tenant)
    if output is Format.TABLE:
        say("Keep it now: only its hash is stored.", err=True)
        if not person:
            say(_OF_A_PROGRAM, err=True)
        pour(f"{made.secret}\n")
    else:
        give_one({**msgspec.to_builtins(made.token), "secret": made.secret}, output)


async def _create(caller: Caller, asked: NewToken, tenant: str | None) -> MadeToken:
    async with caller:
        by = _operator()
        return await create_token(audited_verbs(by, caller.verbs), asked, tenant, by)


def list_tokens(
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List the tokens, without their secrets."""
    found, now = perform(_list, find_caller(app, url), tenant)
    rows: list[dict[str, Any]] = [
        {**msgspec.to_builtins(each), "state": _state(each, now)} for each in found
    ]
    empty = "There are no tokens: `perdure tokens create NAME --role viewer` makes one."
    give_table(rows, output, lambda: _drawn(rows), empty=empty)


async def _list(caller: Caller, tenant: str | None) -> tuple[list[Token], float]:
    async with caller:
        found = await caller.verbs.tokens(tenant)
        return [listed(each) for each in found], await caller.verbs.now()


def _state(token: Token, now: float) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= now else "valid"


def _drawn(rows: list[dict[str, Any]]) -> Table:
    table = Table("id", "name", "state", "tenant", "principal", "roles", "scopes", box=None)
    for row in rows:
        tenant = "(all)" if row["tenant"] is None else row["tenant"]
        more = (", ".join(row["roles"]), ", ".join(row["scopes"] or ()))
        shown = (row["id"], row["name"], row["state"], tenant, row["principal"], *more)
        table.add_row(*map(cell, shown))
    return table


def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="Its id, as in the list.")],
    *,
    url: UrlOption = None,
    app: AppOption = None,
) -> None:
    """Revoke a token, and end the sessions that began with it."""
    perform(_revoke, find_caller(app, url), token)
    say(f"Token {token} is revoked.")


def sign_in(
    *,
    page: Annotated[
        str, typer.Option(help="Where the dashboard is: http://127.0.0.1:8000, say.")
    ] = "",
    url: UrlOption = None,
    app: AppOption = None,
) -> None:
    """Print a link that signs you in to the dashboard, once and within 15 minutes.

    You may do everything there, as whoever has the store. Open it in the browser, or paste it where
    the dashboard asks for a token: also in the middle of a decision that needs a recent sign-in.
    """
    path = perform(_sign_in, find_caller(app, url))
    say("Works once, within 15 minutes: open it, or paste it into the sign-in page.", err=True)
    pour(f"{page.rstrip('/')}{path}\n")


async def _sign_in(caller: Caller) -> str:
    async with caller:
        return link_path(await new_sign_in_link(caller.verbs, local_operator()))


def sign_out(
    person: Annotated[str, typer.Argument(help="Who: the id by which they sign in.")],
    *,
    tenant: Annotated[
        str | None, typer.Option(help="Their tenant; without it, a person of all tenants.")
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
) -> None:
    """Sign a person out in every browser. Their tokens stay valid: revoke those, too."""
    ended = perform(_sign_out, find_caller(app, url), person, tenant)
    say(f"{counted(ended, 'session')} ended.")


async def _sign_out(caller: Caller, person: str, tenant: str | None) -> int:
    async with caller:
        return await audited_verbs(_operator(), caller.verbs).end_sessions(person, tenant)


async def _revoke(caller: Caller, token: str) -> None:
    async with caller:
        await revoke_token(audited_verbs(_operator(), caller.verbs), token, None)
