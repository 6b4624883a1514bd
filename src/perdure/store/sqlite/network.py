"""Is a path on a file system of another machine? SQLite's locks do not work there."""

from pathlib import Path

_MOUNTS = Path("/proc/mounts")
_NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "fuse", "ncp")


def network_file_system(path: Path) -> str | None:
    """Name the kind of network file system that holds the path; None if it is local or unknown."""
    try:
        mounts = _MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:  # not Linux: nobody can tell
        return None
    kind = kind_of(path.absolute(), mounts)
    return kind if kind.startswith(_NETWORK) else None


def kind_of(path: Path, mounts: str) -> str:
    """Find the innermost mount that holds the path."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        _, point, found, *_ = line.split(" ")
        folder = Path(point.replace("\\040", " "))
        if path.is_relative_to(folder) and len(folder.parts) >= best:
            best, kind = len(folder.parts), found
    return kind
