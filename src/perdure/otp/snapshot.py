"""Snapshots: the state of an agent in a file, loaded after a restart.

The file is JSON with a version and a checksum.
It is written to a temporary file, synced to the disk, and renamed,
so that there is a complete one at every moment; the one before is kept as `….previous`.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from perdure.base.duration import Duration, named_seconds
from perdure.base.errors import SnapshotError

_log = logging.getLogger("perdure.otp")

S = TypeVar("S")

FORMAT = "perdure.snapshot.1"


@dataclass(frozen=True, init=False)  # with slots, Python 3.11 could not make a `Snapshot[int]`
class Snapshot(Generic[S]):
    """Where, how often and in which shape a state is saved."""

    path: Path
    every: float | None
    kind: Any
    version: int
    upgrade: Callable[[int, Any], Any] | None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every: Duration = "30s",
        kind: type[S] | None = None,
        version: int = 1,
        upgrade: Callable[[int, Any], Any] | None = None,
    ) -> None:
        """Check the options.

        Args:
            path: The file; its folder must exist.
            every: How often it is written if the state has changed; None: only at a stop.
            kind: The type of the state, such as `dict[int, Order]`; without it, the state is
                loaded as plain JSON: text keys, lists for tuples, dicts for records.
            version: The version of the state's shape; increase it when the shape changes.
            upgrade: Called with an older version and its plain JSON; returns the shape of this
                version.
        """
        seconds = None if every is None else named_seconds("every", every)
        if seconds == 0:
            raise ValueError("every must be longer than 0; None saves only at a stop")
        object.__setattr__(self, "path", Path(path))
        object.__setattr__(self, "every", seconds)
        object.__setattr__(self, "kind", Any if kind is None else kind)
        object.__setattr__(self, "version", version)
        object.__setattr__(self, "upgrade", upgrade)

    @property
    def previous(self) -> Path:
        """The file with the previous snapshot."""
        return self.path.with_name(self.path.name + ".previous")

    @property
    def damaged(self) -> Path:
        """Where a damaged file is moved, for people to inspect."""
        return self.path.with_name(self.path.name + ".damaged")


class Envelope(msgspec.Struct, frozen=True):
    """What is in the file."""

    format: str
    version: int
    saved_at: float
    checksum: str
    state: msgspec.Raw


@dataclass(frozen=True, slots=True)
class LoadedSnapshot:
    """A loaded state, and the checksum of the file's content."""

    state: Any
    checksum: str


# From a state to bytes and back; pure


def encode_state(state: object) -> bytes:
    """Return the state as JSON.

    Raises:
        SnapshotError: It contains something that JSON cannot represent.
    """
    try:
        return msgspec.json.encode(state)
    except (TypeError, ValueError, RecursionError) as error:
        raise SnapshotError(f"the state cannot be saved as JSON: {error}") from error


def checksum_of(state: bytes, version: int) -> str:
    """Return the checksum of a state and its version."""
    return hashlib.sha256(b"%d\n" % version + state).hexdigest()


def seal(state: bytes, version: int, saved_at: float) -> bytes:
    """Return the content of a file."""
    checksum = checksum_of(state, version)
    return msgspec.json.encode(Envelope(FORMAT, version, saved_at, checksum, msgspec.Raw(state)))


def unseal(content: bytes) -> Envelope:
    """Return the content of a file.

    Raises:
        SnapshotError: It is damaged: truncated, changed, or not a snapshot at all.
    """
    try:
        envelope = msgspec.json.decode(content, type=Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotError(f"it is not a complete snapshot ({error})") from error
    if envelope.format != FORMAT:
        raise SnapshotError(f"its format is {envelope.format!r} instead of {FORMAT!r}")
    if envelope.checksum != checksum_of(bytes(envelope.state), envelope.version):
        raise SnapshotError("its checksum does not match its content")
    return envelope


def state_in(envelope: Envelope, snapshot: Snapshot[Any]) -> Any:
    """Return the state, in the shape of this version.

    Raises:
        SnapshotError: It has another shape; nothing is wrong with the file.
    """
    older = envelope.version != snapshot.version
    if older and snapshot.upgrade is None:
        raise SnapshotError(
            f"{snapshot.path} has version {envelope.version} of the state, this program has "
            f"{snapshot.version}: give the Snapshot an `upgrade` function"
        )
    try:
        if snapshot.upgrade is None or not older:
            return msgspec.json.decode(envelope.state, type=snapshot.kind)
        plain = snapshot.upgrade(envelope.version, msgspec.json.decode(envelope.state))
        return msgspec.convert(plain, snapshot.kind)
    except msgspec.ValidationError as error:
        raise SnapshotError(
            f"{snapshot.path} does not hold a {snapshot.kind}: {error}; "
            "if the shape has changed, raise `version` and give an `upgrade` function"
        ) from error


# Files


def save(snapshot: Snapshot[Any], content: bytes) -> None:
    """Write the file; a complete one exists at every moment.

    Raises:
        SnapshotError: The file cannot be written.
    """
    path = snapshot.path
    try:
        temporary = _write_beside(path, content)
        if path.exists():
            path.replace(snapshot.previous)
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise SnapshotError(f"cannot write the snapshot {path}: {error}") from error


def _write_beside(path: Path, content: bytes) -> Path:
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink()
        raise
    return temporary


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system supports it."""
    with suppress(OSError, AttributeError):  # not on every system
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def load(snapshot: Snapshot[Any]) -> LoadedSnapshot | None:
    """Return the newest complete snapshot; None if nothing was ever saved.

    Raises:
        SnapshotError: There are files, but none is complete, or their shape differs.
    """
    mistakes: list[str] = []
    for path in (snapshot.path, snapshot.previous):
        try:
            envelope = unseal(path.read_bytes())
        except FileNotFoundError:
            continue
        except (SnapshotError, OSError) as error:
            mistakes.append(f"{path}: {error}")
            continue
        if mistakes:
            _put_aside(snapshot, mistakes[0])
        return LoadedSnapshot(state_in(envelope, snapshot), envelope.checksum)
    if mistakes:
        raise SnapshotError(
            "no snapshot is complete: " + "; ".join(mistakes) + ". "
            "Restore one of the files, or remove them to begin again"
        )
    return None


def _put_aside(snapshot: Snapshot[Any], mistake: str) -> None:
    """Move a damaged file away; otherwise the next save would replace the good one with it."""
    _log.error(
        "the snapshot is damaged, the previous one is used; %s; it is kept as %s",
        mistake,
        snapshot.damaged,
    )
    snapshot.path.replace(snapshot.damaged)
