"""Threads of LangGraph as the store keeps them; pure.

A thread is a tree of checkpoints. A checkpoint names the version of each channel, and the value of
a channel is kept once for each of its versions. A list that grows, such as the messages of a
conversation, would still be stored as a whole at every version, and the store would grow with the
square of its length. So the items of a long list are *pieces*: each is stored once in its thread,
named by its digest. The list itself is only those names, and each `PAGE` of them are a piece, too.

A *delta channel* has no value in most checkpoints: it is rebuilt from what nodes have written since
the nearest ancestor that has one. Whoever deletes checkpoints must leave those ancestors.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from msgspec import Struct

PAGE: Final = 64  # names in a page
_NAME: Final = 16  # bytes


class GraphCheckpoint(Struct, frozen=True, kw_only=True):
    """A checkpoint of a thread, without the values of its channels."""

    thread: str
    ns: str
    id: str
    parent: str | None
    run: str | None = None
    root: str | None = None  # the graph's own checkpoint from which a subgraph was called
    versions: dict[str, str]
    deltas: tuple[str, ...] = ()
    metadata: bytes
    data: bytes


class GraphWrite(Struct, frozen=True):
    """What a task has written to a channel."""

    task: str
    path: str
    idx: int
    channel: str
    data: bytes


class GraphValue(Struct, frozen=True):
    """The value of a channel: as a whole, or the names of its pieces."""

    data: bytes | None = None
    pieces: bytes | None = None


class TaskWrites(NamedTuple):
    """What a task has written since a checkpoint."""

    ns: str
    checkpoint: str
    writes: Sequence[GraphWrite]


class GraphPut(Struct, frozen=True, kw_only=True):
    """A checkpoint that is to be stored."""

    checkpoint: GraphCheckpoint
    values: dict[str, GraphValue]  # of the channels that have changed
    pieces: dict[str, bytes]  # that are new
    relied: tuple[str, ...]  # pieces that should be there


class LoadedValue(Struct, frozen=True):
    """The value of a channel: as a whole, or its items."""

    data: bytes | None = None
    kind: bytes = b""
    items: tuple[bytes, ...] = ()


class GraphContent(Struct, frozen=True):
    """What belongs to a checkpoint."""

    values: dict[str, LoadedValue]
    writes: list[GraphWrite]


class GraphQuery(Struct, frozen=True, kw_only=True):
    """Which checkpoints are wanted, newest first; None: whichever."""

    thread: str | None = None
    ns: str | None = None
    id: str | None = None
    before: str | None = None  # only older ones
    last: tuple[str, str, str] | None = None  # the one behind which to continue: id, thread, ns
    limit: int = 100


# Pieces


class Manifest(NamedTuple):
    """The names that make up a value: those of full pages, and those of the items behind them."""

    kind: bytes  # one byte
    pages: list[str]
    items: list[str]

    def pack(self) -> bytes:
        """Return it as it is stored."""
        names = b"".join(bytes.fromhex(name) for name in (*self.pages, *self.items))
        return self.kind + len(self.pages).to_bytes(4) + names


def compose(kind: bytes, items: Sequence[bytes]) -> tuple[Manifest, dict[str, bytes]]:
    """Return the names that make up a value of these items, and the pieces by name."""
    names = [piece_name(item) for item in items]
    pieces = dict(zip(names, items, strict=True))
    full = len(names) - len(names) % PAGE
    pages: list[str] = []
    for first in range(0, full, PAGE):
        page = bytes.fromhex("".join(names[first : first + PAGE]))
        pages.append(piece_name(page))
        pieces[pages[-1]] = page
    return Manifest(kind, pages, names[full:]), pieces


def read_manifest(packed: bytes) -> Manifest:
    """Return the names that make up a value."""
    names, count = names_in(packed[5:]), int.from_bytes(packed[1:5])
    return Manifest(packed[:1], names[:count], names[count:])


def names_in(page: bytes) -> list[str]:
    """Return the names in a page."""
    text = page.hex()
    return [text[start : start + 2 * _NAME] for start in range(0, len(text), 2 * _NAME)]


def new_pieces(
    manifest: Manifest, pieces: Mapping[str, bytes], known: Iterable[str]
) -> tuple[dict[str, bytes], list[str]]:
    """Return the pieces of a value that are not known, and the known ones that it relies on.

    A page that is known stands for its items.
    """
    there = known if isinstance(known, set) else set(known)
    needed = [*manifest.pages, *manifest.items]
    for page in manifest.pages:
        if page not in there:
            needed += names_in(pieces[page])
    new = {name: pieces[name] for name in needed if name not in there}
    return new, [name for name in dict.fromkeys(needed) if name in there]


def piece_name(data: bytes) -> str:
    """Return the name of a piece: a digest of what is in it."""
    return blake2b(data, digest_size=_NAME).hexdigest()


# What may be deleted


class Bone(NamedTuple):
    """What a checkpoint is, for those who delete some."""

    ns: str
    id: str
    parent: str | None
    run: str | None
    root: str | None
    versions: Mapping[str, str]
    deltas: Sequence[str]


Place = tuple[str, str]  # of a checkpoint: its namespace and its id
Version = tuple[str, str, str]  # namespace, channel, version


def latest(bones: Sequence[Bone]) -> set[Place]:
    """Return the newest checkpoint of each namespace; of subgraphs, while their call is kept.

    The namespace of a call of a subgraph has the id of its task. Without the checkpoint from which
    it was called, nothing reads it.
    """
    heads: dict[str, Bone] = {}
    for bone in bones:
        if bone.ns not in heads or bone.id > heads[bone.ns].id:
            heads[bone.ns] = bone
    root, roots = heads.get(""), {bone.id for bone in bones if not bone.ns}
    return {
        (ns, head.id)
        for ns, head in heads.items()
        if ":" not in ns or head.root not in roots or (root is not None and head.root == root.id)
    }


def with_seeds(bones: Iterable[Bone], kept: set[Place], stored: set[Version]) -> set[Place]:
    """Return the checkpoints that are kept, with the ancestors that their delta channels need."""
    known = {(bone.ns, bone.id): bone for bone in bones}
    needed = set(kept)
    for place in kept:
        bone: Bone | None = known.get(place)
        missing = set(bone.deltas) if bone is not None else set[str]()
        while bone is not None:
            versions, ns = bone.versions, bone.ns
            missing -= {name for name in missing if (ns, name, versions.get(name)) in stored}
            if not missing:
                break
            bone = known.get((ns, bone.parent or ""))
            if bone is not None:
                needed.add((ns, bone.id))
    return needed
