"""Who is who: whether two names mean one person; pure.

Names are compared in two ways. To *grant* anything, a name must be `spelled` as the person's own.
To *refuse* a vote (four eyes, a second vote of one person), everything that could be the same
person is: look-alike letters, accents, an e-mail address beside a name.
"""

import unicodedata
from collections.abc import Iterable
from typing import Final

# What is not seen: control and format characters, such as a zero-width space.
_UNSEEN: Final = frozenset({"Cc", "Cf"})

# Letters of other alphabets that look like Latin ones: first as capitals, then as small letters.
_CAPITALS: Final = str.maketrans(
    "АВЕІЈКМНОРСТУХЅҮԀԚԜ" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",  # noqa: RUF001 - that is what they are for
    "ABEIJKMHOPCTYXSYDQW" + "ABEZHIKMNOPTYX",
)
_SMALL: Final = str.maketrans(
    "авсеорхуіјѕһӏԁԛԝүгкмнтп" + "αβγεηικνορτυχ" + "ıɑɡɩłøđ" + "օոսհ" + "01i|",  # noqa: RUF001
    "abceopxyijshldqwyrkmhtn" + "abyenikvoptux" + "iagilod" + "onuh" + "olll",
)


def spelled(name: str) -> str:
    """Give a name in the one spelling by which it is looked up."""
    seen = "".join(each for each in name if unicodedata.category(each) not in _UNSEEN)
    return " ".join(unicodedata.normalize("NFKC", seen).casefold().split())


def same_person(one: Iterable[str], other: Iterable[str]) -> bool:
    """Tell whether the names of two could be names of one person.

    An e-mail address also counts as its part before the `@`, unless both have an address.
    """
    ours, theirs = {_looks(name) for name in one}, {_looks(name) for name in other}
    if ours & theirs:
        return True
    if _addresses(ours) and _addresses(theirs):
        return False
    return bool(_with_local_parts(ours) & _with_local_parts(theirs))


def _looks(name: str) -> str:
    """Give what a name looks like."""
    latin = unicodedata.normalize("NFKC", name).translate(_CAPITALS)
    parts = unicodedata.normalize("NFKD", spelled(latin))
    bare = "".join(each for each in parts if not unicodedata.combining(each)).translate(_SMALL)
    local, at, domain = bare.replace("rn", "m").replace("vv", "w").partition("@")
    return f"{local.partition('+')[0]}@{domain}" if at else local


def _addresses(names: set[str]) -> bool:
    return any("@" in name for name in names)


def _with_local_parts(names: set[str]) -> set[str]:
    return names | {name.partition("@")[0] for name in names}
