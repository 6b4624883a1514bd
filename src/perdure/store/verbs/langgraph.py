"""Threads of LangGraph: checkpoints, the values of their channels, and what nodes have written.

On PostgreSQL, a put that relies on pieces shares a lock of its thread, and whoever deletes pieces
has that lock alone, in a transaction of its own. So a value never loses a piece that it names.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from perdure.base.errors import StoreError
from perdure.jobs.graph_thread import (
    Bone,
    GraphCheckpoint,
    GraphContent,
    GraphPut,
    GraphQuery,
    GraphWrite,
    LoadedValue,
    Place,
    TaskWrites,
    Version,
    latest,
    names_in,
    read_manifest,
    with_seeds,
)
from perdure.store.sealing import chunk_names
from perdure.store.statements import Row, Session
from perdure.store.verbs.reseal import copy_sealed

_read_versions = msgspec.json.Decoder(dict[str, str]).decode
_read_deltas = msgspec.json.Decoder(tuple[str, ...]).decode


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# Write


def put_graph(
    session: Session, tenant: str, thread: str, wrote: Sequence[TaskWrites], put: GraphPut | None
) -> bool:
    """Store what tasks have written, and the checkpoint that follows from it, if any.

    Returns:
        False if pieces that the checkpoint relies on are gone: then it was not stored.
    """
    where = {"tenant": tenant, "thread": thread}
    rows = graph_rows(where, wrote, put)
    is_complete = put is None or _has_pieces(session, where, put)
    session.change(*(rows if is_complete else rows[:1]))
    return is_complete


def graph_rows(
    where: dict[str, str], wrote: Sequence[TaskWrites], put: GraphPut | None
) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return what is to be stored: the statement for each table, and its rows."""
    rows = [("put_graph_write", _write_rows(where, wrote))]
    if put is None:
        return rows
    point = put.checkpoint
    # In a fixed order: two that insert the same pieces must not wait for each other.
    pieces = [{**where, "digest": name, "data": data} for name, data in sorted(put.pieces.items())]
    where = {**where, "ns": point.ns}
    values = [
        {**where, "channel": name, "version": point.versions[name], "data": value.data,
         "pieces": value.pieces}
        for name, value in sorted(put.values.items())
    ]  # fmt: skip
    checkpoint = {
        **where, "id": point.id, "parent": point.parent, "run": point.run, "root": point.root,
        "versions": _json(point.versions), "deltas": _json(point.deltas),
        "metadata": point.metadata, "data": point.data,
    }  # fmt: skip
    rows += [("insert_graph_piece", pieces), ("put_graph_value", values)]
    return [*rows, ("put_graph_checkpoint", [checkpoint])]


def _write_rows(where: dict[str, str], wrote: Sequence[TaskWrites]) -> list[dict[str, Any]]:
    """Return a row for each write; PostgreSQL cannot write one twice in a statement."""
    rows: dict[tuple[str, str, str, int], dict[str, Any]] = {}
    for ns, checkpoint, writes in wrote:
        for each in writes:
            key = ns, checkpoint, each.task, each.idx
            if each.idx < 0 or key not in rows:  # as `put_graph_write` has it
                place = {**where, "ns": ns, "checkpoint": checkpoint}
                rows[key] = place | msgspec.structs.asdict(each)
    return [rows[key] for key in sorted(rows)]


def _has_pieces(session: Session, where: dict[str, str], put: GraphPut) -> bool:
    """Whether the pieces that a checkpoint relies on are there; they are kept until the commit."""
    if not (put.pieces or put.relied):
        return True
    names = chunk_names(session.keys, where["tenant"], put.relied)
    _, found = session.together(
        ("share_graph_thread", {"name": lock_name(**where)}),
        ("graph_pieces_known", {**where, "digests": session.array(list(names))}),
    )
    return {names[stored] for (stored,) in found} == set(put.relied)


def prove_progress(session: Session, job_id: str, owner: str) -> None:
    """Record that a job makes progress that is not in its journal."""
    session.run("prove_progress", id=job_id, owner=owner)


# Read


def graph_checkpoint(
    session: Session, tenant: str, thread: str, ns: str, id: str | None
) -> tuple[GraphCheckpoint, GraphContent] | None:
    """Return a checkpoint with what belongs to it; without an id, the newest one."""
    where = {"tenant": tenant, "thread": thread, "ns": ns}
    more = {} if id is None else {"id": id}
    found = session.find("graph_checkpoint", set(more), **where, **more)
    if not found:
        return None
    point = _checkpoint(found[0])
    return point, graph_content(session, tenant, point)


def graph_checkpoints(session: Session, tenant: str, query: GraphQuery) -> list[GraphCheckpoint]:
    """Return a page of checkpoints, newest first."""
    asked: dict[str, Any] = {
        name: getattr(query, name) for name in ("thread", "ns", "id", "before")
    }
    if query.last is not None:
        asked |= zip(("last_id", "last_thread", "last_ns"), query.last, strict=True)
    present = {name: value for name, value in asked.items() if value is not None}
    limits = {"tenant": tenant, "limit": query.limit}
    rows = session.find("graph_checkpoints", set(present), **present, **limits)
    return [_checkpoint(each) for each in rows]


def graph_content(session: Session, tenant: str, point: GraphCheckpoint) -> GraphContent:
    """Return what belongs to a checkpoint."""
    where = {"tenant": tenant, "thread": point.thread, "ns": point.ns}
    values = _values(session, where, point.versions)
    return GraphContent(values, _writes(session, where, point.id))


def graph_history(
    session: Session, tenant: str, thread: str, place: Place, channels: Sequence[str]
) -> list[GraphContent]:
    """Return what the ancestors of a checkpoint have of channels, from its parent on.

    It ends where each of the channels has had a value.
    """
    ns, id = place
    where = {"tenant": tenant, "thread": thread, "ns": ns}
    found: list[GraphContent] = []
    missing, current = set(channels), _ancestor(session, where, id)
    current = current and current.parent and _ancestor(session, where, current.parent)
    while missing and current:
        versions = {name: each for name, each in current.versions.items() if name in missing}
        values = _values(session, where, versions)
        writes = [each for each in _writes(session, where, current.id) if each.channel in missing]
        found.append(GraphContent(values, writes))
        missing -= set(values)
        current = current.parent and _ancestor(session, where, current.parent)
    return found


def _ancestor(session: Session, where: dict[str, str], id: str) -> GraphCheckpoint | None:
    found = session.find("graph_checkpoint", {"id"}, **where, id=id)
    return _checkpoint(found[0]) if found else None


def _checkpoint(row: Row) -> GraphCheckpoint:
    thread, ns, id, parent, versions, deltas, metadata, data = row
    return GraphCheckpoint(
        thread=thread, ns=ns, id=id, parent=parent, versions=_read_versions(versions),
        deltas=_read_deltas(deltas), metadata=bytes(metadata), data=bytes(data),
    )  # fmt: skip


def _writes(session: Session, where: dict[str, str], id: str) -> list[GraphWrite]:
    rows = session.all("graph_writes", **where, checkpoint=id)
    return [GraphWrite(task, path, idx, name, bytes(data)) for task, path, idx, name, data in rows]


def _values(
    session: Session, where: dict[str, str], versions: dict[str, str]
) -> dict[str, LoadedValue]:
    values: dict[str, LoadedValue] = {}
    if not versions:
        return values
    for channel, _, data, pieces in session.all("graph_values", **where, versions=_json(versions)):
        if pieces is None:
            values[channel] = LoadedValue(bytes(data))
        else:
            values[channel] = _composed(session, where, bytes(pieces))
    return values


def _composed(session: Session, where: dict[str, str], packed: bytes) -> LoadedValue:
    manifest = read_manifest(packed)
    pages = _pieces(session, where, manifest.pages)
    names = [name for page in manifest.pages for name in names_in(pages[page])]
    names += manifest.items
    items = _pieces(session, where, names)
    return LoadedValue(None, manifest.kind, tuple(items[name] for name in names))


def _pieces(session: Session, where: dict[str, str], names: Sequence[str]) -> dict[str, bytes]:
    if not names:
        return {}
    given = {"tenant": where["tenant"], "thread": where["thread"]}
    stored = chunk_names(session.keys, where["tenant"], dict.fromkeys(names))
    rows = session.all("graph_pieces", **given, digests=session.array(list(stored)))
    found = {stored[name]: bytes(data) for name, data in rows}
    if gone := [name for name in names if name not in found]:
        raise StoreError(
            f"thread {where['thread']!r}: {len(gone)} pieces of a value are gone from the table "
            f"langgraph_piece, such as {gone[0]}: restore them from a backup"
        )
    return found


# Delete and copy


def delete_graph_thread(session: Session, tenant: str, thread: str) -> None:
    """Delete a thread."""
    where = {"tenant": tenant, "thread": thread}
    session.lock(lock_name(**where))
    for name in ("checkpoints", "writes", "values", "pieces"):
        session.run(f"delete_graph_{name}", **where)


def threads_of_runs(session: Session, tenant: str, runs: Sequence[str]) -> list[str]:
    """Return the threads that have checkpoints of these runs."""
    found = session.all("threads_of_runs", tenant=tenant, runs=session.array(runs))
    return [thread for (thread,) in found]


def delete_graph_runs(session: Session, tenant: str, thread: str, runs: Sequence[str]) -> None:
    """Delete the checkpoints of runs, without those that delta channels of others need."""
    where, bones = _locked(session, tenant, thread)
    given = set(runs)
    kept = {(bone.ns, bone.id) for bone in bones if bone.run not in given}
    _keep(session, where, bones, kept)


def prune_graph_thread(session: Session, tenant: str, thread: str) -> None:
    """Delete all checkpoints but the newest, and those that its delta channels need."""
    where, bones = _locked(session, tenant, thread)
    _keep(session, where, bones, latest(bones))


def copy_graph_thread(session: Session, tenant: str, thread: str, target: str) -> None:
    """Copy a thread, with all ancestors and writes."""
    where = {"tenant": tenant, "thread": thread, "target": target}
    session.one("share_graph_thread", name=lock_name(tenant, thread))
    session.one("share_graph_thread", name=lock_name(tenant, target))
    source, copy = {"tenant": tenant, "thread": thread}, {"tenant": tenant, "thread": target}
    for name in ("piece", "value", "write", "checkpoint"):
        session.run(f"copy_graph_{name}s", **where)
        copy_sealed(session, f"langgraph_{name}", source, copy)


def lock_name(tenant: str, thread: str) -> str:
    """Return what the lock of a thread is called."""
    return f"langgraph {tenant} {thread}"


def _locked(session: Session, tenant: str, thread: str) -> tuple[dict[str, str], list[Bone]]:
    where = {"tenant": tenant, "thread": thread}
    session.lock(lock_name(**where))
    rows = session.all("graph_bones", **where)
    return where, [
        Bone(ns, id, parent, run, root, _read_versions(versions), _read_deltas(deltas))
        for ns, id, parent, run, root, versions, deltas in rows
    ]


def _keep(session: Session, where: dict[str, str], bones: list[Bone], kept: set[Place]) -> None:
    """Delete all checkpoints but these and what they need, and what nothing names any more."""
    values = session.all("graph_value_keys", **where)
    stored: set[Version] = {(ns, channel, version) for ns, channel, version, _ in values}
    kept = with_seeds(bones, kept, stored)
    gone = [bone for bone in bones if (bone.ns, bone.id) not in kept]
    if not gone:
        return
    rows = [{**where, "ns": bone.ns, "id": bone.id} for bone in gone]
    session.many("delete_graph_checkpoint", rows)
    session.many("delete_graph_writes_of", rows)
    left = [bone for bone in bones if (bone.ns, bone.id) in kept]
    orphans = [
        {**where, "ns": bone.ns, "id": bone.id}
        for bone in left
        if bone.parent is not None and (bone.ns, bone.parent) not in kept
    ]
    if orphans:
        session.many("orphan_graph_checkpoint", orphans)
    _sweep(session, where, left, values)


def _sweep(
    session: Session, where: dict[str, str], bones: Iterable[Bone], values: Sequence[Row]
) -> None:
    """Delete values that no checkpoint names, and pieces that no value names."""
    named = {(bone.ns, *each) for bone in bones for each in bone.versions.items()}
    unnamed = [
        {**where, "ns": ns, "channel": channel, "version": version}
        for ns, channel, version, _ in values
        if (ns, channel, version) not in named
    ]
    if unnamed:
        session.many("delete_graph_value", unnamed)
    manifests = [
        read_manifest(bytes(pieces))
        for ns, channel, version, pieces in values
        if pieces is not None and (ns, channel, version) in named
    ]
    used = {name for each in manifests for name in (*each.pages, *each.items)}
    pages = _pieces(session, where, [name for each in manifests for name in each.pages])
    used |= {name for page in pages.values() for name in names_in(page)}
    unused = [digest for (digest,) in session.all("graph_piece_keys", **where)]
    stored = chunk_names(session.keys, where["tenant"], used)
    rows = [{**where, "digest": digest} for digest in unused if digest not in stored]
    if rows:
        session.many("delete_graph_piece", rows)
