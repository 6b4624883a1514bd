"""`perdure doctor`: checks the machine, a store and its contents, and the definitions of an app."""

import asyncio
import os
import platform
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import parse_qs, urlsplit

import typer
from msgspec import Struct
from msgspec.structs import replace

from perdure import __version__
from perdure.base.clock import SystemClock
from perdure.base.errors import EncryptionError, JobError
from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    counted,
    give,
    give_list,
    give_one,
    show,
    warn,
)
from perdure.cli.target import AppOption, load_app, spelled
from perdure.engine.attendance import SILENT
from perdure.jobs.anti_pattern import SIGNS, SIGNS_OF_CODE, signs_of_code
from perdure.jobs.fleet import Definitions
from perdure.jobs.invariant import INVARIANTS, Violation
from perdure.jobs.model import JobQuery
from perdure.jobs.query_text import parse
from perdure.notify.message import visible
from perdure.store.open import open_store
from perdure.store.sqlite.connection import network_file_system
from perdure.store.store import Store

if TYPE_CHECKING:
    from perdure.app import App

_WIDEST: Final = 400  # characters of one finding
_FULL: Final = ("2", "3")  # SQLite's FULL and EXTRA
_SKEW: Final = 2.0  # seconds that two clocks may differ
_LONG: Final = "1d"  # that a job may wait for a person
_RULES: Final = {each.name: each for each in INVARIANTS}
_SIGNS: Final = {each.name: each for each in (*SIGNS, *SIGNS_OF_CODE)}
_ENCRYPTED: Final = ("require", "verify-ca", "verify-full")
_HERE: Final = ("", "localhost", "127.0.0.1", "::1")


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
    signs: tuple[str, ...] = ()
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
    app: AppOption = None,
    limit: Annotated[int, typer.Option(min=1, help="The most findings per rule.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Check the machine, a store and its contents, and the code of an app.

    Changes nothing. Exit code 0: no problem; 1: problems were found; 2: the check failed.
    """
    loaded = None if app is None else load_app(app, store)
    try:
        report = asyncio.run(examine(store, limit, loaded))
    except JobError as error:
        warn(str(error))
        raise typer.Exit(Code.USAGE) from None
    told = _as_json(report)
    if json:
        give(told, indent=2)
    elif output is Format.IDS:
        give_list(told["findings"], output, "check")
    elif not give_one(told, output):
        show(*_lines(report))
    raise typer.Exit(Code.FAILED if report.findings else Code.OK)


async def examine(url: str | None, limit: int, app: "App | None" = None) -> Report:
    """Return the report about a store and an app, or without either.

    Raises:
        StoreError: The store cannot be read.
    """
    here = Report(
        perdure=__version__,
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        signs=() if app is None else tuple(each.name for each in SIGNS_OF_CODE),
        findings=(*page_found(files("perdure.web").joinpath("static")), *_code(app)),
    )
    url = url or (None if app is None else app.url)
    if not url:
        return here
    store = open_store(url, shows_locked=True)
    _must_be_there(store)
    await store.open()
    try:
        found = await _of_store(here, url, store, limit)
        left = await _without_undo(store, app, limit)
        return replace(found, findings=(*found.findings, *left))
    finally:
        await store.close()


async def _of_store(report: Report, url: str, store: Store, limit: int) -> Report:
    settings = await store.durability()
    keys = await _keys(store)
    # Without a key, the rules that look into payloads cannot be checked.
    violations = [] if keys else await store.violations(limit)
    return replace(
        report,
        store=spelled(url),
        jobs=await store.counts(),
        settings={**settings, **await _encryption(store)},
        rules=() if keys else tuple(_RULES),
        signs=(*(each.name for each in SIGNS), *report.signs),
        findings=(
            *report.findings,
            *(() if store.path is None else file_found(store.path, os.geteuid())),
            *transport_found(url, os.environ.get("PGSSLMODE", "")),
            *settings_found(settings),
            *keys,
            *map(_of_rule, violations),
            *map(_of_rule, await store.signs(limit)),
            *await _unserved(store),
            *await _stuck(store, limit),
            *await _clock(store),
            *await _other_versions(store),
            *await _waiting_for_people(store, limit),
        ),
    )


async def _keys(store: Store) -> list[Finding]:
    """Find keys of the store that this program lacks."""
    try:
        await store.check_keys()
    except EncryptionError as error:
        found = Finding(
            check="keys",
            rule="Every program has the keys by which the payloads of its store are encrypted.",
            what=str(error),
            advice="set the keys that the workers have: without them, the rules are not checked",
        )
        return [found]
    return []


async def _encryption(store: Store) -> dict[str, str]:
    """Return which keys a store needs, and which of them writes here."""
    used, own = await store.store_keys(), await store.own_keys()
    writes = next((key for key, is_first in own.items() if is_first), "none")
    return {"encryption": f"{', '.join(used)} (writes: {writes})"} if used or own else {}


async def _clock(store: Store) -> list[Finding]:
    """Find a clock of this machine that differs from that of the store."""
    machine = SystemClock()
    began = machine.monotonic()
    theirs, ours = await store.now(), machine.time()
    took = machine.monotonic() - began
    return list(clock_found(ours - theirs, took))


def clock_found(ahead: float, took: float) -> Iterator[Finding]:
    """Yield a finding if the machine is ahead of the store, or behind it, by more than it took."""
    if abs(ahead) > _SKEW + took:
        yield Finding(
            check="clock",
            rule="The clocks of workers and store agree, since people compare their times.",
            what=f"this machine is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} it",
            advice="let NTP set both clocks (`timedatectl status`)",
        )


async def _other_versions(store: Store) -> list[Finding]:
    return [
        Finding(
            check="versions",
            rule="All workers run a version of Perdure that others can read.",
            what=f"worker {each.id} on {each.host} runs a version that this one cannot read",
            advice="finish the deployment: run the same version of Perdure everywhere",
        )
        for each in (await store.fleet(SILENT)).workers
        if each.definitions is None
    ]


async def _without_undo(store: Store, app: "App | None", limit: int) -> list[Finding]:
    """Find effects that would stay if their job failed, by the code of an app or of the workers."""
    fleet = await store.fleet(SILENT)
    of_workers = [each.definitions for each in fleet.workers if each.definitions is not None]
    known = of_workers if app is None else [Definitions.of(app)]
    return [
        Finding(
            check="effects_without_undo",
            rule="What a step does is undone if its job fails, or its code says that it stays.",
            what=f"{counted(count, 'effect')} of kind {kind} by step {step}, which has no undo",
            advice="add @step.compensate, or effect(undo=…); or say that it stays: undo=None, "
            "irreversible=True",
            job=job_id,
        )
        for step, kind, count, job_id in await store.effects_without_undo(limit)
        if any(each.leaves_effects(step) for each in known)
    ]


async def _waiting_for_people(store: Store, limit: int) -> list[Finding]:
    """Find jobs that need a person and that nobody has looked at for long."""
    query = replace(parse(f"state:attention created:>{_LONG}"), limit=limit)
    return [
        Finding(
            check="attention",
            rule="A job that needs a person gets one within a day.",
            what=f"{job.name} needs attention",
            advice="`perdure jobs show JOB` says why; then resume, retry, compensate or cancel it",
            job=job.id,
        )
        for job in await store.jobs(query)
    ]


async def _stuck(store: Store, limit: int) -> list[Finding]:
    """Find jobs that workers have, and that make no progress."""
    return [
        Finding(
            check="stuck",
            rule="A job that a worker has makes progress.",
            what=f"{job.name} is stuck",
            advice="`perdure jobs show JOB` names its step: cancel the job if that hangs, and give "
            "the step a `timeout`; if it is only slow, let it call ctx.heartbeat()",
            job=job.id,
        )
        for job in await store.jobs(JobQuery(stuck=True, limit=limit))
    ]


def page_found(static: Traversable) -> Iterator[Finding]:
    """Yield a finding if the dashboard does not come with this installation."""
    if not static.joinpath("index.html").is_file():
        yield Finding(
            check="page",
            rule="The dashboard comes with the package.",
            what="its files are missing, so `perdure serve` and `dev` serve the API only",
            advice="install the package again, or run scripts/page in a checkout",
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
            jobs = f"{counted(count, 'job')} {'waits' if count == 1 else 'wait'}"
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
        raise JobError(f"there is no file {store.path} yet: nothing to check")


def _code(app: "App | None") -> Iterator[Finding]:
    if app is not None:
        found = signs_of_code(app.jobs.values(), app.steps.values(), app.policy.gates)
        yield from map(_of_rule, found)


def _of_rule(violation: Violation) -> Finding:
    rule = _RULES.get(violation.invariant) or _SIGNS[violation.invariant]
    return Finding(
        check=rule.name,
        rule=rule.sentence,
        what=violation.what,
        advice=rule.advice,
        job=violation.job_id or None,
    )


# The checks of the file, the connection and the settings.


def file_found(path: Path, user: int) -> Iterator[Finding]:
    """Yield what is wrong with the file of a store, for a user of this machine."""
    if (owner := path.stat().st_uid) != user:
        yield Finding(
            check="file_owner",
            rule="Workers and commands run as the owner of the store.",
            what=f"{path} belongs to user {owner}, and this command runs as user {user}",
            advice="run it as the owner: otherwise new files of SQLite belong to another user",
        )
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


def transport_found(url: str, default: str) -> Iterator[Finding]:
    """Yield a finding if a connection to another machine may be unencrypted.

    Args:
        url: Of the store.
        default: What PGSSLMODE in the environment says.
    """
    if url.startswith("sqlite:"):
        return
    parts = urlsplit(url)
    (mode,) = parse_qs(parts.query).get("sslmode", [default])[-1:]
    hosts = [each.rpartition("@")[2].partition(":")[0] for each in parts.netloc.split(",")]
    distant = [each for each in hosts if each not in _HERE and not each.startswith("%2F")]
    if distant and mode not in _ENCRYPTED:
        yield Finding(
            check="transport",
            rule="A connection to a database on another machine is encrypted.",
            what=f"the connection to {distant[0]} may be unencrypted",
            advice="add sslmode=verify-full to the URL, or sslmode=require at least",
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
    if settings.get("is_superuser") == "on":
        yield Finding(
            check="permissions",
            rule="Workers are not superusers of the database.",
            what="the role in this URL is a superuser of PostgreSQL",
            advice="use a role that owns the schema of the jobs, and nothing else",
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
        "signs": list(report.signs),
        "findings": found,
    }


def _lines(report: Report) -> Iterator[str]:
    yield f"perdure {report.perdure}, Python {report.python}, SQLite {report.sqlite}"
    if report.store is None:
        yield from _found_lines(report)
        yield "No store was given: pass --store sqlite:///jobs.db or --app, or set PERDURE_URL."
        return
    states = ", ".join(f"{count} {state}" for state, count in sorted(report.jobs.items()) if count)
    yield f"store    {report.store}"
    yield f"jobs     {sum(report.jobs.values())}" + (f": {states}" if states else "")
    set_to = ", ".join(f"{name} = {value}" for name, value in sorted(report.settings.items()))
    yield f"settings {set_to}"
    found = counted(len(report.findings), "problem") if report.findings else "no problems"
    checked = f"{len(report.rules)} rules, {len(report.signs)} anti-patterns and the settings"
    yield f"Checked {checked}: {found} found."
    yield from _found_lines(report)


def _found_lines(report: Report) -> Iterator[str]:
    for (check, rule), same in groupby(report.findings, lambda each: (each.check, each.rule)):
        yield ""
        yield f"{check}: {rule}"
        found_here = list(same)
        for each in found_here:
            of = "" if each.job is None else f"{each.job}  "
            yield f"  {of}{visible(each.what, _WIDEST)}"
        for advice in dict.fromkeys(each.advice for each in found_here):
            yield f"  → {advice}"
