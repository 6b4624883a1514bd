"""Who is who: whether two names mean one person; pure.

Names are compared in two ways. To *grant* anything, a name must be `spelled` as the person's own.
To *refuse* a vote (four eyes, a second vote of one person), everything that could be the same
person is: look-alike letters, accents, an e-mail address beside a name.
"""

import unicodedata
from collections.abc import Iterable
from typing import Final

# What is not seen: control and format characters, such as a zero-width space; and some blanks.
_UNSEEN: Final = frozenset({"Cc", "Cf"})
_BLANKS: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800")
_MARKS: Final = frozenset({"Mn", "Me"})

# Letters of other alphabets that look like Latin ones: first as capitals, then as small letters.
_CAPITALS: Final = str.maketrans(
    "АВЕІЈКМНОРСТУХЅҮԀԚԜ" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",  # noqa: RUF001 - that is what they are for
    "ABEIJKMHOPCTYXSYDQW" + "ABEZHIKMNOPTYX",
)
_SMALL: Final = str.maketrans(
    "авсеорхуіјѕһӏԁԛԝүгкмнтп" + "αβγεηικνορτυχ" + "ıɑɡɩłøđ" + "օոսհ",  # noqa: RUF001
    "abceopxyijshldqwyrkmhtn" + "abyenikvoptux" + "iagilod" + "onuh",
)
_ALIKE: Final = str.maketrans("01i|", "olll")  # among Latin letters and digits themselves


def spelled(name: str) -> str:
    """Give a name in the one spelling by which it is looked up."""
    seen = "".join(each for each in name if not _is_unseen(each))
    return " ".join(unicodedata.normalize("NFKC", seen).casefold().split())


def _is_unseen(letter: str) -> bool:
    return letter in _BLANKS or unicodedata.category(letter) in _UNSEEN


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
    bare = "".join(each for each in parts if unicodedata.category(each) not in _MARKS)
    bare = bare.translate(_SMALL).translate(_ALIKE)
    local, at, domain = bare.replace("rn", "m").replace("vv", "w").partition("@")
    return f"{local.partition('+')[0]}@{domain}" if at else local


def _addresses(names: set[str]) -> bool:
    return any("@" in name for name in names)


def _with_local_parts(names: set[str]) -> set[str]:
    return names | {name.partition("@")[0] for name in names}
