"""Completion in bash, which takes `state:failed` for three words: a colon ends a word.

So the pieces are put together again for those who complete, and what they find is printed without
the part of the word that bash keeps.
"""

import io
import sys
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager, redirect_stdout


@contextmanager
def whole_words(environ: MutableMapping[str, str]) -> Generator[None]:
    """Complete whole words within this block, if it is bash that asks."""
    kept = _rejoin(environ) if "COMP_WORDS" in environ else ""
    if not kept:
        yield
        return
    found = io.StringIO()
    try:
        with redirect_stdout(found):
            yield
    finally:
        for line in found.getvalue().splitlines():
            sys.stdout.write(f"{line.removeprefix(kept)}\n")


def _rejoin(environ: MutableMapping[str, str]) -> str:
    """Put the words together that bash has cut; return what it keeps of the current one."""
    words, current = environ["COMP_WORDS"].split("\n"), int(environ.get("COMP_CWORD", "0"))
    whole: list[str] = []
    place, kept = current, ""
    for number, word in enumerate(words):
        follows = bool(whole) and (_is_colon(word) or whole[-1].endswith(":"))
        before = whole.pop() if follows else ""
        whole.append(before + word)
        if number == current:
            place, kept = len(whole) - 1, before + word if _is_colon(word) else before
    environ.update(COMP_WORDS="\n".join(whole), COMP_CWORD=str(place))
    return kept


def _is_colon(word: str) -> bool:
    return bool(word) and not word.strip(":")
