"""Count what an installation without extras consists of, and exit with 1 if it is too much.

Run by the Python of the new environment, which has nothing but Perdure and what it needs.
"""

import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

MOST_PACKAGES, MOST_BYTES = 30, 70 * 1000 * 1000
BROUGHT_BY_VENV = {"pip", "setuptools", "wheel"}


def size_of(package: Distribution) -> int:
    """Return the bytes of its files, with what Python compiles them to."""
    paths = [Path(str(package.locate_file(file))) for file in package.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> int:
    """Print the counts; return the exit code."""
    found = {
        package.metadata["Name"]: size_of(package)
        for package in distributions()
        if package.metadata["Name"].lower() not in BROUGHT_BY_VENV
    }
    total = sum(found.values())
    largest = sorted(found, key=lambda name: -found[name])[:5]
    parts = ", ".join(f"{name} {found[name] / 1e6:.1f}" for name in largest)
    told = f"{len(found)} packages, {total / 1e6:.1f} MB; the largest are {parts}"
    sys.stdout.write(f"package: {told}\n")
    if len(found) > MOST_PACKAGES or total > MOST_BYTES:
        sys.stdout.write(
            f"package: more than {MOST_PACKAGES} packages or {MOST_BYTES / 1e6:g} MB\n"
        )
        return 1
    return 0


sys.exit(main())
