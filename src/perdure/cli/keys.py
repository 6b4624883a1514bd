"""`perdure keys`: make the keys that encrypt payloads, see which are in use, and change them."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Final

import msgspec
import typer
from msgspec import Struct
from rich.table import Table

from perdure.base.clock import SystemClock
from perdure.base.encryption import PLAIN, VARIABLE, generate_key
from perdure.base.errors import EncryptionError
from perdure.base.retry import pause
from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    cell,
    give_one,
    give_table,
    perform,
    pour,
    progress,
    say,
    warn,
)
from perdure.cli.target import AppOption, UrlOption, find_caller
from perdure.engine.attendance import SILENT
from perdure.engine.caller import Caller
from perdure.jobs.fleet import WorkerInfo
from perdure.store.sealing import TABLES
from perdure.store.store import Store

_WALKS: Final = 5  # what others have locked is passed over, and found by the next walk
_CLOCK: Final = SystemClock()


class Rotation(Struct, frozen=True, kw_only=True):
    """What a rotation did.

    Attributes:
        key: The id of the key under which everything should be now; "plain" for none.
        changed: How many rows were encrypted again.
        left: How many values are still under other keys, by their ids.
        others: Workers that still encrypt with another key, each with the id of that key.
    """

    key: str
    changed: int
    left: Mapping[str, int]
    others: Mapping[str, str]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        help="Make and change the keys that encrypt payloads.", no_args_is_help=True
    )
    group.command()(generate)
    group.command("list")(list_keys)
    group.command()(rotate)
    app.add_typer(group, name="keys")


def generate() -> None:
    """Print a new random key."""
    say(f"Keep it where only your programs can read it, and set {VARIABLE}.", err=True)
    pour(f"{generate_key()}\n")


def list_keys(
    *, url: UrlOption = None, app: AppOption = None, output: FormatOption = Format.TABLE
) -> None:
    """Count the values of a store by the keys that encrypt them; reads all of it."""
    rows = perform(_listed, find_caller(app, url, needs_code=True))
    empty = "There are no payloads, and no key was used."
    give_table(rows, output, lambda: _drawn(rows), empty=empty, key="key")


def _drawn(rows: list[dict[str, Any]]) -> Table:
    table = Table("key", "values", "this program", "tables", box=None)
    for row in rows:
        table.add_row(*map(cell, (row["key"], f"{row['values']:,}", row["role"], row["tables"])))
    return table


async def _listed(caller: Caller) -> list[dict[str, Any]]:
    async with caller:
        store = await caller.store()
        found = await count_by_key(store)
        used, ours = await store.store_keys(), await store.own_keys()
    ids = dict.fromkeys([*ours, *used, *(key for by in found.values() for key in by if key)])
    return [
        {
            "key": key or PLAIN,
            "values": sum(by[key] for by in found.values()),
            "role": _role(key, ours),
            "tables": ", ".join(table for table, by in found.items() if by[key]),
        }
        for key in (*ids, "")
        if key or any(by[""] for by in found.values())
    ]


def _role(key: str, ours: Mapping[str, bool]) -> str:
    if not key:
        return "-"
    if key not in ours:
        return "lacks it"
    return "writes" if ours[key] else "reads"


def rotate(
    *,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Rows in a transaction.")] = 200,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Encrypt everything with the first key, while workers run; may be stopped and repeated."""
    report = perform(_rotated, find_caller(app, url, needs_code=True, shows_locked=False), batch)
    if not give_one(msgspec.to_builtins(report), output, "key"):
        say(f"{report.changed:,} rows were encrypted with the key {report.key}.")
        for key, number in report.left.items():
            warn(f"{number:,} values are still {key}: other programs write them; rotate again")
        for worker, key in report.others.items():
            warn(f"worker {worker} encrypts with {key}: restart it with the new keys, rotate again")
        if not (report.left or report.others):
            say("Nothing is left under another key: those may be removed from the settings.")
    raise typer.Exit(Code.FAILED if report.left or report.others else Code.OK)


async def _rotated(caller: Caller, batch: int) -> Rotation:
    async with caller:
        with progress("encrypting rows"):
            return await rotate_keys(await caller.store(), batch)


async def rotate_keys(store: Store, batch: int) -> Rotation:
    """Encrypt everything in a store with the first key of this program.

    Raises:
        EncryptionError: This program has no keys, or lacks one.
    """
    own = await store.own_keys()
    if not own:
        raise EncryptionError(f"there are no keys: set {VARIABLE}, the new key first")
    writes = next((key for key, is_first in own.items() if is_first), "")
    changed, left = 0, Counter[str]()
    for _ in range(_WALKS):
        async for number in _walk(store, batch):
            changed += number
        left = sum((await count_by_key(store)).values(), Counter[str]())
        left.pop(writes, None)
        if not left:
            break
    others = await _other_writers(store, writes)
    if not left and not others:
        await store.forget_keys([key for key in await store.store_keys() if key != writes])
    named = {key or PLAIN: number for key, number in left.items()}
    return Rotation(key=writes or PLAIN, changed=changed, left=named, others=others)


async def _walk(store: Store, batch: int) -> AsyncIterator[int]:
    """Go through all tables, and yield how many rows of each batch were changed."""
    for table in TABLES:
        position = None
        while True:
            began = _CLOCK.monotonic()
            page = await store.reseal(table, position, batch)
            yield page.changed
            if page.position is None:
                break
            position = page.position
            if page.changed:  # workers get as much of the time as this does
                await pause(_CLOCK.monotonic() - began)


async def count_by_key(store: Store) -> dict[str, Counter[str]]:
    """Return how many values each table has under each key; "" are those that are plain."""
    found: dict[str, Counter[str]] = {table: Counter() for table in TABLES}
    for table, counted in found.items():
        page = await store.sealed_page(table)
        counted.update(page.found)
        while page.position is not None:
            page = await store.sealed_page(table, page.position)
            counted.update(page.found)
    return found


async def _other_writers(store: Store, key: str) -> dict[str, str]:
    """Return the living workers that encrypt with another key."""
    found: dict[str, str] = {}
    for row in await store.workers():
        try:
            theirs = msgspec.json.decode(row.info, type=WorkerInfo).key
        except msgspec.MsgspecError:  # another version of perdure wrote it
            continue
        if theirs != key and row.silent_for <= SILENT:
            found[row.owner] = theirs or PLAIN
    return found
