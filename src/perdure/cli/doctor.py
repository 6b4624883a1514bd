"""`perdure doctor`: checks the machine, the settings of a store, and its invariants."""

import asyncio
import os
import platform
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec import Struct

from perdure import __version__
from perdure.base.errors import JobError
from perdure.cli.output import Code, give, show, warn
from perdure.cli.target import spelled
from perdure.engine.attendance import SILENT
from perdure.jobs.invariant import INVARIANTS, Violation
from perdure.notify.message import visible
from perdure.store.open import open_store
from perdure.store.sqlite.connection import network_file_system
from perdure.store.store import Store

_WIDEST: Final = 400  # characters of one finding
_FULL: Final = ("2", "3")  # SQLite's FULL and EXTRA
_RULES: Final = {each.name: each for each in INVARIANTS}


class Finding(Struct, frozen=True, kw_only=True):
    """One problem."""

    check: str
    rule: str  # what should be true
    what: str
    advice: str
    job: str | None = None


class Report(Struct, frozen=True, kw_only=True):
    """What was checked, and what was found."""

    perdure: str
    python: str
    sqlite: str
    store: str | None = None
    jobs: Mapping[str, int] = {}
    settings: Mapping[str, str] = {}
    rules: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    *,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            "--url",
            envvar="PERDURE_URL",
            help="The store to check, such as `sqlite:///jobs.db` or `postgresql://…`.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most findings per rule.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Check the machine, the settings of a store, and that its contents are consistent.

    Changes nothing. Exit code 0: no problem; 1: problems were found; 2: the check failed.
    """
    try:
        report = asyncio.run(examine(store, limit))
    except JobError as error:
        warn(str(error))
        raise typer.Exit(Code.USAGE) from None
    if json:
        give(_as_json(report), indent=2)
    else:
        show(*_lines(report))
    raise typer.Exit(Code.FAILED if report.findings else Code.OK)


async def examine(url: str | None, limit: int) -> Report:
    """Return the report.

    Raises:
        StoreError: The store cannot be read.
    """
    here = Report(
        perdure=__version__, python=platform.python_version(), sqlite=sqlite3.sqlite_version
    )
    if not url:
        return here
    store = open_store(url)
    _must_be_there(store)
    await store.open()
    try:
        return await _of_store(here, url, store, limit)
    finally:
        await store.close()


async def _of_store(report: Report, url: str, store: Store, limit: int) -> Report:
    settings = await store.durability()
    violations = await store.violations(limit)
    return Report(
        perdure=report.perdure,
        python=report.python,
        sqlite=report.sqlite,
        store=spelled(url),
        jobs=await store.counts(),
        settings=settings,
        rules=tuple(_RULES),
        findings=(
            *(() if store.path is None else _file(store.path)),
            *settings_found(settings),
            *map(_of_rule, violations),
            *await _unserved(store),
        ),
    )


async def _unserved(store: Store) -> list[Finding]:
    """Find jobs that are ready and that no living worker can claim, if there is any worker."""
    fleet, found = await store.fleet(SILENT), list[Finding]()
    if not fleet.workers:
        return found
    for queue, _, count, job_id in await store.unclaimed():
        job = await store.job(job_id)
        why = None if job is None or queue in fleet.paused else fleet.why_waiting(job)
        if why is not None:
            jobs = "1 job waits" if count == 1 else f"{count} jobs wait"
            found.append(
                Finding(
                    check="unserved",
                    rule="A worker serves the queue of every job, and knows its name and version.",
                    what=f"{jobs}: {why}",
                    advice="start a worker with that code for that queue (`perdure workers`)",
                    job=job_id,
                )
            )
    return found


def _must_be_there(store: Store) -> None:
    """Raise JobError if the store does not exist: opening it would create an empty one."""
    if store.path is not None and not store.path.exists():
        raise JobError(f"there is no file {store.path}")


def _of_rule(violation: Violation) -> Finding:
    rule = _RULES[violation.invariant]
    return Finding(
        check=rule.name,
        rule=rule.sentence,
        what=violation.what,
        advice=rule.advice,
        job=violation.job_id,
    )


# The checks of the file and the settings.


def _file(path: Path) -> Iterator[Finding]:
    for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        if each.exists() and (mode := stat.S_IMODE(each.stat().st_mode)) & 0o077:
            yield Finding(
                check="file_mode",
                rule="Only its owner can read a store, since jobs carry personal data.",
                what=f"{each} has mode {mode:o}",
                advice=f"chmod 600 {each}",
            )
    if not os.access(path.resolve().parent, os.W_OK):
        yield Finding(
            check="folder",
            rule="SQLite can create files beside the store.",
            what=f"the folder {path.resolve().parent} is not writable",
            advice="make it writable for the user of the workers",
        )
    if kind := network_file_system(path):
        yield Finding(
            check="file_system",
            rule="A SQLite file is on a local disk.",
            what=f"{path} is on a network file system ({kind})",
            advice="put it on a local disk, or use PostgreSQL",
        )


_DURABLE: Final = "Acknowledged writes survive a power failure."


def settings_found(settings: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the settings of a database that break a guarantee."""
    if settings.get("journal_mode", "wal") != "wal":
        mode = settings["journal_mode"]
        yield _setting("SQLite has journal mode " + mode, "PRAGMA journal_mode = WAL")
    if settings.get("synchronous", "2") not in _FULL:
        yield _setting("SQLite does not sync every commit", "PRAGMA synchronous = FULL")
    for name in ("fsync", "full_page_writes"):
        if settings.get(name, "on") == "off":
            yield _setting(f"PostgreSQL has {name} = off", f"set {name} = on, and restart it")
    if settings.get("synchronous_commit", "on") == "off":
        yield _setting(
            "PostgreSQL has synchronous_commit = off",
            "set synchronous_commit = on for the database or the role of the workers",
        )
    if "on" in (
        settings.get("transaction_read_only"),
        settings.get("default_transaction_read_only"),
    ):
        yield Finding(
            check="read_only",
            rule="A store is writable.",
            what="PostgreSQL is read-only: a standby, or configured so",
            advice="connect to the primary server",
        )


def _setting(what: str, advice: str) -> Finding:
    return Finding(check="durability", rule=_DURABLE, what=what, advice=advice)


# The output.


def _as_json(report: Report) -> dict[str, Any]:
    found = [
        {name: getattr(each, name) for name in each.__struct_fields__} for each in report.findings
    ]
    return {
        "ok": not report.findings,
        "perdure": report.perdure,
        "python": report.python,
        "sqlite": report.sqlite,
        "store": report.store,
        "jobs": dict(report.jobs),
        "settings": dict(report.settings),
        "rules": list(report.rules),
        "findings": found,
    }


def _lines(report: Report) -> Iterator[str]:
    yield f"perdure {report.perdure}, Python {report.python}, SQLite {report.sqlite}"
    if report.store is None:
        yield "No store was given: pass --store sqlite:///jobs.db, or set PERDURE_URL."
        return
    states = ", ".join(f"{count} {state}" for state, count in sorted(report.jobs.items()) if count)
    yield f"store    {report.store}"
    yield f"jobs     {sum(report.jobs.values())}" + (f": {states}" if states else "")
    set_to = ", ".join(f"{name} = {value}" for name, value in sorted(report.settings.items()))
    yield f"settings {set_to}"
    count = len(report.findings)
    found = f"{count} problems found" if count else "no problems found"
    yield f"Checked {len(report.rules)} rules and the settings: {found}."
    for (check, rule), same in groupby(report.findings, lambda each: (each.check, each.rule)):
        yield ""
        yield f"{check}: {rule}"
        found_here = list(same)
        for each in found_here:
            of = "" if each.job is None else f"{each.job}  "
            yield f"  {of}{visible(each.what, _WIDEST)}"
        for advice in dict.fromkeys(each.advice for each in found_here):
            yield f"  → {advice}"
