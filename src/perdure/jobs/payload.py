"""Large payloads: what the journal keeps in their place, and how they are stored elsewhere; pure.

A payload that is larger than `PayloadLimits.inline` is not in the journal itself. In its place is a
`StandIn`: its digest, its size, and a preview for people. Two kinds of payloads differ in the rest:

* *Arguments* that nothing will read again are only that. The code passes them again at a replay,
  and the digest tells whether they are still the same.
* *Results*, and arguments that an undo or a person will read, are in the table of payloads: split
  into chunks, each compressed and named by its digest. An agent that returns its whole history at
  every turn repeats all chunks but the last, and a chunk is stored once for a job.

The text of a stand-in is JSON that begins with a blank. What the codec writes never does, so both
can be in the same column and can be told apart by their first byte.
"""

import zlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from hashlib import blake2b, sha256
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from perdure.base.encryption import key_of, missing_text
from perdure.base.errors import EncryptionError
from perdure.base.secret import without_secrets

CHUNK: Final = 64 * 1024  # bytes before compression
PREVIEW: Final = 200  # characters

_MARK: Final = b" "
_SEALED: Final = b"\t"  # of what is encrypted
_MARKS: Final = (_MARK, _SEALED)
_LEVEL: Final = 1  # the fastest: text shrinks to half or less, at a hundred megabytes a second


class Chunk(Struct, frozen=True):
    """A compressed part of a payload, named by the digest of what is in it."""

    digest: str
    data: bytes


class StandIn(Struct, frozen=True, omit_defaults=True):
    """What the journal has in the place of a large payload."""

    digest: str  # SHA-256 of all of it
    size: int = field(name="bytes")
    preview: str
    chunks: tuple[str, ...] = ()  # empty: only the digest was kept

    def pack(self) -> bytes:
        """Return it as the journal keeps it."""
        return _MARK + msgspec.json.encode(self)

    def shown(self) -> dict[str, Any]:
        """Return what people and programs are shown."""
        return {"digest": self.digest, "bytes": self.size, "preview": self.preview}


_read: Final = msgspec.json.Decoder(StandIn).decode


def is_stand_in(payload: bytes) -> bool:
    """Whether something else stands in the place of a payload."""
    return payload[:1] in _MARKS


def stand_in_of(payload: bytes | None) -> StandIn | None:
    """Return what stands in the place of a payload; None if nothing does."""
    return _stand_in_of(payload) if payload is not None and is_stand_in(payload) else None


def _stand_in_of(payload: bytes) -> StandIn:
    refuse_sealed(payload)
    return _read(payload)


def refuse_sealed(payload: bytes) -> None:
    """Raise if a payload is still encrypted.

    Raises:
        EncryptionError: This program was started before the payloads of its store were encrypted.
    """
    if payload[:1] == _SEALED:
        key = key_of(payload.decode())
        raise EncryptionError(missing_text([key], ()), missing=(key,))


def digested(payload: bytes) -> bytes:
    """Return what is kept of arguments that nobody will read again."""
    return _stand_in(payload).pack()


def split(payload: bytes, known: AbstractSet[str] = frozenset()) -> tuple[bytes, list[Chunk]]:
    """Return what the journal keeps, and the chunks, without those that are known."""
    parts = [payload[start : start + CHUNK] for start in range(0, len(payload), CHUNK)]
    names = [chunk_name(part) for part in parts]
    new = {name: part for name, part in zip(names, parts, strict=True) if name not in known}
    chunks = [Chunk(name, zlib.compress(part, _LEVEL)) for name, part in new.items()]
    return _stand_in(payload, tuple(names)).pack(), chunks


def joined(stand_in: StandIn, chunks: Mapping[str, bytes]) -> bytes | None:
    """Return a payload from its compressed chunks; None if they do not make it up."""
    try:
        payload = b"".join([zlib.decompress(chunks[name]) for name in stand_in.chunks])
    except (KeyError, zlib.error):
        return None
    return payload if sha256(payload).hexdigest() == stand_in.digest else None


def is_same(kept: bytes, given: bytes) -> bool:
    """Whether two payloads are equal, also if the journal keeps only the digest of one."""
    return kept == given or _digest(kept) == _digest(given)


def excerpt(payload: bytes) -> str:
    """Return the beginning of a payload, for messages."""
    found = stand_in_of(payload)
    if found is not None:
        return f"{found.preview} ({found.size:,} bytes, digest {found.digest[:12]})"
    text = payload[: 4 * PREVIEW].decode(errors="ignore")
    return text if len(payload) <= PREVIEW else f"{text[:PREVIEW]}…"


def _stand_in(payload: bytes, chunks: tuple[str, ...] = ()) -> StandIn:
    # Cut before secrets are looked for: a text may be megabytes long.
    text = payload[: 8 * PREVIEW].decode(errors="ignore")
    preview = without_secrets(text)[:PREVIEW] + "…"
    return StandIn(sha256(payload).hexdigest(), len(payload), preview, chunks)


def _digest(payload: bytes) -> str:
    found = stand_in_of(payload)
    return sha256(payload).hexdigest() if found is None else found.digest


def chunk_name(part: bytes) -> str:
    """Return the name of a chunk: a digest of what is in it."""
    return blake2b(part, digest_size=16).hexdigest()
