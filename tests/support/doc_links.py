"""Finds the links of Markdown pages that lead nowhere."""

import re
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s+(\S+)")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")
HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*\s*$")
EXPLICIT_ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"|\{\s*#([\w-]+)\s*\}")


def broken_links(page: Path, root: Path) -> Iterator[str]:
    """Yields `path:line: …` for each link to a file or heading that is not there."""
    for number, line in _prose(page):
        for found in LINK.finditer(line):
            target = found[1] or found[2]
            if not ELSEWHERE.match(target) and not _leads_somewhere(page, target):
                yield f"{page.relative_to(root)}:{number}: `{target}` leads nowhere"


def _leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    goal = page.parent / path if path else page
    if not goal.exists():
        return False
    return not anchor or goal.suffix != ".md" or anchor in set(_anchors(goal))


def _anchors(page: Path) -> Iterator[str]:
    for _, line in _prose(page, with_code=True):
        for found in EXPLICIT_ANCHOR.finditer(line):
            yield found[1] or found[2]
        if found := HEADING.match(line):
            yield _slug(found[1])


def _slug(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.strip().replace(" ", "-")


def _prose(page: Path, *, with_code: bool = False) -> Iterator[tuple[int, str]]:
    """Yields the numbered lines outside of code blocks, without their code spans."""
    fence = ""
    for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence:
            if mark and mark[1].startswith(fence):
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            yield number, line if with_code else re.sub(r"`[^`]*`", "", line)
