"""Finds the Python examples of a Markdown page, and runs them.

Every ```python block is a whole program, and is run as one.
Its functions named `test_…` are called, as pytest (with a plugin for asyncio) would.
A ```output block that follows it must be exactly what the program prints.
It is run in an empty folder of its own, so that it may write files.
`<!-- not run: reason -->` right before a block leaves it out.

`python -m tests.support.doc_examples PAGE…` runs pages by hand; its exit code is 1 if any failed.
"""

import asyncio
import contextlib
import io
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

FENCE = re.compile(r"```(\w*)\s*$")
NOT_RUN = re.compile(r"<!--\s*not run(.*?)-->")


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    kind: str
    line: int  # of the opening fence
    code: str
    before: str  # the last line of text before it
    close: bool  # nothing but that line stands between it and the block before


@dataclass(frozen=True)
class Example:
    """A program, and what it prints; None if the page does not say."""

    line: int
    code: str
    output: str | None
    mark: str | None  # what stands after "not run"


def blocks(text: str) -> Iterator[Block]:
    inside: list[str] | None = None
    kind, start, between = "", 0, [""]
    for number, line in enumerate(text.splitlines(), start=1):
        fence = FENCE.match(line)
        if inside is not None:
            if fence:
                before = next((each for each in reversed(between) if each), "")
                yield Block(kind, start, "\n".join([*inside, ""]), before, len(between) <= 1)
                inside, between = None, []
            else:
                inside.append(line)
        elif fence:
            inside, kind, start = [], fence[1], number
        elif line.strip():
            between.append(line.strip())


def examples(text: str) -> Iterator[Example]:
    found = list(blocks(text))
    for block, following in zip_longest(found, found[1:]):
        if block.kind != "python":
            continue
        prints = following and following.kind == "output" and following.close
        mark = NOT_RUN.fullmatch(block.before)
        yield Example(
            block.line,
            block.code,
            following.code if prints else None,
            mark[1].strip(": ") if mark else None,
        )


def failures(page: Path) -> Iterator[str]:
    """Run the examples of a page; yield `path:line: what is wrong` for each that fails."""
    for example in examples(page.read_text("utf-8")):
        place = f"{page}:{example.line}"
        if example.mark is not None:
            if not example.mark:
                yield f"{place}: an example is left out only with a reason"
            continue
        printed, error = _run(example, page)
        if error:
            yield f"{place}: the example fails\n{error}"
        elif example.output is not None and printed != example.output:
            yield f"{place}: the example prints\n{printed}instead of\n{example.output}"


def _run(example: Example, page: Path) -> tuple[str, str]:
    """Give what the example printed, and the traceback if it failed."""
    # The empty lines make the line numbers of a traceback those of the page.
    code = "\n" * example.line + example.code
    module: dict[str, object] = {"__name__": "__main__"}
    printed = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(printed),
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
        ):
            exec(compile(code, str(page), "exec"), module)
            for name, thing in tuple(module.items()):
                if name.startswith("test_") and callable(thing):
                    called = thing()
                    if asyncio.iscoroutine(called):
                        asyncio.run(called)
    except BaseException:  # noqa: BLE001  SystemExit and exit reasons are failures too
        return printed.getvalue(), traceback.format_exc()
    return printed.getvalue(), ""


if __name__ == "__main__":
    found = [failure for page in sys.argv[1:] for failure in failures(Path(page))]
    sys.stdout.write("\n".join([*found, ""]) if found else "")
    sys.exit(bool(found))
