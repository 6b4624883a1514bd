"""What is stored comes back as it was, or is refused."""

import enum
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from typing import Annotated, Any, NamedTuple, NewType, TypedDict, cast
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from pydantic import AliasPath, BaseModel, ConfigDict, Field, SecretStr, field_serializer

from perdure.base.codec import (
    Codec,
    PayloadLimits,
    canonical,
    decode,
    depth,
    digest,
    encode,
    fingerprint,
    parse,
)
from perdure.base.errors import (
    DefinitionError,
    Drift,
    PayloadTooLarge,
    Unstorable,
    WrongType,
    safe_text,
)
from perdure.base.schema import json_schema
from perdure.base.secret import Secret


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class Row(TypedDict):
    id: int


class Part(Struct):
    name: str
    size: float | None = None
    parts: list["Part"] = []


@dataclass
class Order:
    id: int
    parts: list[Part]


@dataclass(eq=False)
class Unequal:
    id: int
    size: float | None = None


@attrs.define
class Shelf:
    height: int


class Mail(BaseModel):
    to: str
    at: datetime | None = None
    size: float | None = None


class Shouted(BaseModel):
    text: str

    @field_serializer("text")
    def shout(self, text: str) -> str:
        return text.upper()


class Letter(BaseModel):
    code: SecretStr


@dataclass
class Batch:
    mails: list[Mail]


class User(BaseModel):
    user_id: int = Field(alias="userId")


class Read(BaseModel):
    user_id: int = Field(validation_alias=AliasPath("user", "id"))


class Written(BaseModel):
    user_id: int = Field(serialization_alias="userId")


class Both(BaseModel):
    user_id: int = Field(validation_alias="uid", serialization_alias="userId")


class ByAlias(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True, extra="forbid")

    user_id: int = Field(alias="userId")


class Team(BaseModel):
    model_config = ConfigDict(alias_generator=str.upper, extra="forbid")

    lead: User
    others: list[Both | None]


class Roster(Struct):
    users: list[User]


class Float64(float):
    """As numpy's."""


class Int64:
    """As numpy's, which is no int."""

    dtype = "int64"

    def tolist(self) -> int:
        return 1


@dataclass(frozen=True)
class Page:
    rows: list[int]


AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
KNOWN: list[tuple[Any, Any]] = [
    (None, Any),
    (True, Any),
    (1, float),
    (2**63, Any),
    (-(2**200), int),
    (10**4299, Any),
    ("ü \U0001f600 \x01", str),
    ([1, "a", {"b": [None]}], Any),
    ({"b": 1, "a": 2}, dict[str, int]),
    ({1: "a"}, dict[int, str]),
    ((1, "a"), tuple[int, str]),
    ({1, 2}, set[int]),
    (b"\x00\xff", bytes),
    ("a\0b", str),
    ({"a": {"b\0": 1}}, Any),
    (Mail(to="\0"), Mail),
    (["\ud800", "\\ud800"], Any),
    ({"\udfff": [1, -0.0, 10**4000]}, Any),
    (Part("\ud800", 1.5), Part),
    ({7: ("\udc00", AT)}, dict[int, tuple[str, datetime]]),
    (AT, datetime),
    (date(2026, 3, 1), date),
    (time(12, 30), time),
    (timedelta(days=3, microseconds=5), timedelta),
    (Decimal("1.10"), Decimal),
    (Decimal("-Infinity"), Decimal),
    (UUID(int=7), UUID),
    (Colour.RED, Colour),
    (Point(1, 2), Point),
    ({"id": 1}, Row),
    (Part("a", 1.5, [Part("b")]), Part),
    (Order(1, [Part("a")]), Order),
    (Shelf(3), Shelf),
    (Mail(to="a", at=AT), Mail),
    ([Mail(to="a"), 3, None], list[Mail | int | None]),
    (Batch([Mail(to="a")]), Batch),
    ({"a": {"b": 1}}, dict[str, object]),
    (User(userId=1), User),
    (Read.model_validate({"user": {"id": 1}}), Read),
    (Written(user_id=1), Written),
    (Both.model_validate({"uid": 1}), Both),
    (ByAlias(userId=1), ByAlias),
    (Team.model_validate({"LEAD": {"userId": 1}, "OTHERS": [{"uid": 2}, None]}), Team),
    ({"a": [User(userId=1)]}, dict[str, list[User]]),
    (User(userId=1), User | None),
    (Roster([User(userId=1)]), Roster),
    ([Float64(1.5)], Any),
]

REFUSED: list[tuple[Any, Any, str]] = [
    (math.nan, float, "JSON cannot represent nan"),
    (math.nan, float | None, "JSON cannot represent nan"),
    ({"a": [1, -math.inf]}, Any, "at a[1]: JSON cannot represent -inf"),
    (Part("a", math.nan), Part, "at size: JSON cannot represent nan"),
    (Mail(to="a", size=math.inf), Mail, "at size: JSON cannot represent inf"),
    (Batch([Mail(to="a", size=math.nan)]), Batch, "at mails[0].size: JSON cannot represent nan"),
    (Decimal("NaN"), Decimal, "not equal to itself"),
    (["\ud83d\ude00"], Any, "at [0]: it would come back as"),  # two halves would become one
    (["\ud800", math.nan], Any, "at [1]: JSON cannot represent nan"),
    (10**4300, int, "more than 4300 digits"),
    ({"a": {10**5000: 1}}, Any, "more than 4300 digits"),
    ((1, 2), Any, "a `tuple` would come back as a `list`"),
    ({"a": (1, 2)}, dict[str, Any], "at a: a `tuple` would come back as a `list`"),
    ({1}, Any, "a `set` would come back as a `list`"),
    (b"a", Any, "a `bytes` would come back as a `str`"),
    ({1: 2}, Any, "its key 1 would come back as str"),
    ({1: 2, "1": 3}, Any, "its key 1 would come back as str"),
    (AT, Any, "a `datetime` would come back as a `str`"),
    (Part("a"), Any, "a `Part` would come back as a `dict`"),
    (Mail(to="a"), Any, "a `Mail` would come back as a `dict`"),
    (2**53 + 1, float, "an `int` would come back as a `float`"),
    (object(), Any, "an `object` cannot be stored"),
    ({"a": [object()]}, dict[str, object], "at a[0]: an `object` cannot be stored"),
    (Shouted(text="a"), Shouted, "at text: it would come back as 'A'"),
    (Float64("nan"), Any, "JSON cannot represent nan"),
    ([Int64()], Any, "at [0]: an `Int64` cannot be stored: write `.tolist()`"),
    ((1, (2, 3)), list[Any], "at [1]: a `tuple` would come back as a `list`"),
    (Page(cast("Any", {1})), Page, "at rows: a `set` would come back as a `list`"),
    (Secret("hush"), Any, "it is a secret"),
    ({"a": Secret("hush")}, Any, "at a: it is a secret"),
    (Letter(code=SecretStr("hush")), Letter, "at code: it is a secret"),
]


def shown(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", safe_text(value, ascii))[:40]  # the same in every process


@pytest.mark.parametrize(("value", "declared"), KNOWN, ids=shown)
def test_a_value_of_its_declared_type_comes_back_equal(value: Any, declared: Any) -> None:
    back = decode(encode(value, declared), declared)
    assert back == value


@pytest.mark.parametrize(("value", "declared", "why"), REFUSED, ids=shown)
def test_what_would_come_back_otherwise_is_refused(value: Any, declared: Any, why: str) -> None:
    with pytest.raises(Unstorable) as caught:
        encode(value, declared)
    assert why in str(caught.value)
    assert "hush" not in str(caught.value)


Numbers = NewType("Numbers", list[int])


@pytest.mark.parametrize(
    ("value", "declared", "back"),
    [
        ((1, 2), list[int], [1, 2]),
        ((), list, []),
        ((1, 2), list[int] | None, [1, 2]),
        ((1, 2), Numbers, [1, 2]),
        ((1, 2), Annotated[list[int], "numbers"], [1, 2]),
        ({"a": ((1,), (2,))}, dict[str, list[list[int]]], {"a": [[1], [2]]}),
        ([1, 2], tuple, (1, 2)),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([(1,), [2]], tuple[list[int], tuple[int]], ([1], (2,))),
        ((Mail(to="a"),), list[Mail], [Mail(to="a")]),
        (Page(cast("Any", (1, 2))), Page, Page([1, 2])),
        ((Page(cast("Any", (1,))),), list[Page], [Page([1])]),
    ],
    ids=shown,
)
def test_a_tuple_is_stored_as_the_list_that_is_declared(
    value: Any, declared: Any, back: Any
) -> None:
    assert decode(encode(value, declared), declared) == back


def test_a_model_is_read_by_its_aliases_and_by_the_names_of_its_fields() -> None:
    assert [decode(data, User) for data in (b'{"userId":1}', b'{"user_id":1}')] == [
        User(userId=1),
        User(userId=1),
    ]


def test_a_schema_names_fields_as_they_are_stored() -> None:
    written = {User: "user_id", ByAlias: "userId", Roster: "user_id"}
    for kind, name in written.items():
        assert f'"{name}"' in json.dumps(json_schema(kind))


def test_minus_zero_stays_minus_zero() -> None:
    assert math.copysign(1, decode(encode([-0.0]))[0]) == -1


def test_the_order_of_keys_stays() -> None:
    assert list(decode(encode({"b": 1, "a": 2}))) == ["b", "a"]


def test_an_object_without_equality_is_compared_by_its_fields() -> None:
    assert decode(encode(Unequal(3), Unequal), Unequal).id == 3
    with pytest.raises(Unstorable, match="at size"):
        encode(Unequal(3, math.nan), Unequal)


@pytest.mark.parametrize("declared", [Sequence[int], Mapping[str, Sequence[int]]], ids=str)
def test_where_any_sequence_will_do_a_tuple_comes_back_as_a_list(declared: Any) -> None:
    value: Any = (1, 2) if declared == Sequence[int] else {"a": (1, 2)}
    assert list(decode(encode(value, declared), declared)) == list(value)


@pytest.mark.parametrize(
    ("value", "declared"),
    [(1, str), ("1", int), (True, int), (None, str), ({"id": "x"}, Row), ({}, Part), (3, Mail)],
    ids=repr,
)
def test_a_value_of_another_type_is_refused(value: Any, declared: Any) -> None:
    with pytest.raises(WrongType, match="declared type"):
        encode(value, declared)


@pytest.mark.parametrize("declared", [Secret, list[Secret[str]], object(), complex], ids=shown)
def test_a_type_that_is_no_data_cannot_be_declared(declared: Any) -> None:
    with pytest.raises(DefinitionError, match="the value cannot have the type"):
        Codec(declared)


def test_a_payload_above_its_named_limit_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match=r"`PayloadLimits\.checkpoint` allows 10") as caught:
        encode(
            "x" * 20, what="the checkpoint", kind="checkpoint", limits=PayloadLimits(checkpoint=10)
        )
    assert "the checkpoint is 22 bytes" in str(caught.value)
    assert encode("x" * 20, kind="result", limits=PayloadLimits(checkpoint=10))


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_a_value_may_be_as_deep_as_the_limit_and_no_deeper() -> None:
    assert encode(nested(200))
    with pytest.raises(Unstorable, match="deeper than the 200 levels"):
        encode(nested(201))
    with pytest.raises(Unstorable, match="deeper than the 3 levels"):
        encode({"a": [{"b": []}]}, limits=PayloadLimits(depth=3))


@pytest.mark.parametrize("levels", [2000, sys.getrecursionlimit() * 20])
def test_a_bottomless_value_is_refused_without_harm(levels: int) -> None:
    with pytest.raises(Unstorable, match="nested deeper"):
        encode(nested(levels))


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(Unstorable, match="contains itself"):
        encode(value)


@pytest.mark.parametrize("text", ["[" * 1000, '"]}\\"', "}" * 5000, '\\"[[[['])
def test_brackets_in_text_are_not_taken_for_depth(text: str) -> None:
    value = {text: [text, text] * 50}
    assert depth(encode(value)) == 2
    assert decode(encode(value)) == value


@pytest.mark.parametrize("texts", [("}" * 3000, ""), ("}" * 3000, "{" * 3000), ("]" * 9, "")])
def test_brackets_in_text_do_not_hide_depth(texts: tuple[str, str]) -> None:
    with pytest.raises(Unstorable, match="deeper than the 200 levels"):
        encode([texts[0], nested(210), texts[1]])


def test_many_shallow_rows_are_not_taken_for_depth() -> None:
    rows = [[[number]] for number in range(5000)]
    assert decode(encode(rows)) == rows


def test_stored_data_that_does_not_fit_any_more_is_a_drift() -> None:
    codec: Codec[int] = Codec(int, "the result of step count")
    with pytest.raises(Drift, match=r"the result of step count .* Expected `int`, got `str`"):
        codec.decode(b'"x"')
    with pytest.raises(Drift):
        codec.decode(b"{")


def test_a_message_about_a_model_is_on_one_line() -> None:
    with pytest.raises(WrongType) as caught:
        encode({"to": 3}, Mail)
    assert "\n" not in str(caught.value)
    assert "http" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 2}', "an object has the key 'a' twice"),
        ('{"a": NaN}', "JSON has no NaN"),
        ("{'a': 1}", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
    ],
    ids=["twice", "nan", "quotes", "deep"],
)
def test_json_from_outside_is_read_strictly(text: str, why: str) -> None:
    with pytest.raises(Unstorable, match=why):
        parse(text)


def test_equal_values_have_one_canonical_form() -> None:
    assert canonical({"b": {3, 1, 2}, "a": 1}) == canonical({"a": 1, "b": {2, 3, 1}})
    assert canonical({"a": 1}) == b'{"a":1}'
    with pytest.raises(Unstorable, match="at a: JSON cannot represent"):
        canonical({"a": math.nan})


def test_no_two_rows_of_parts_have_one_digest() -> None:
    rows = [("a,b",), ("a", "b"), ("ab",), ("", "ab"), ("ab", ""), (), ("1:a",), ("a", "1:b")]
    assert len({digest(*row) for row in rows}) == len(rows)
    assert digest("a", "b") == digest(b"a", b"b")
    assert len(digest()) == 64


def test_a_digest_is_the_same_on_every_day() -> None:
    # Keys of effects rest on it: whoever changes it must change the version tag too.
    assert digest("a", "b").startswith("826b3fe3e8da18db")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.sets(st.integers())
    ),
    max_leaves=12,
)


def test_a_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    assert fingerprint("a", b'{"x":1,"y":[2]}') == fingerprint("a", b'{"y": [2], "x": 1}')
    assert fingerprint("a", b'{"x":1}') != fingerprint("b", b'{"x":1}')
    assert fingerprint("a", b"[1,2]") != fingerprint("a", b"[2,1]")


def exactly(one: Any, other: Any) -> bool:
    """Tells whether two values are the same, types and signs of zeros included."""
    return one == other and safe_text(one) == safe_text(other)


def check(value: Any) -> None:
    try:
        data = encode(value)
    except Unstorable:
        return
    assert exactly(decode(data), value)
    assert b"\0" not in data


@given(json_values)
def test_anything_comes_back_exactly_or_is_refused(value: Any) -> None:
    check(value)


PLAIN: list[Any] = [
    0,
    -0.0,
    2**63,
    -(2**64),
    1e308,
    5e-324,
    None,
    True,
    "",
    "a",
    "\U0001f600",
    "[{",
]
ODD: list[Any] = [math.nan, math.inf, "\0", "\ud83d", "\\u0000", b"x", AT, Decimal(1), 10**4301]


def wild(random: Random, levels: int) -> Any:
    """Makes a value of odd parts, most of which can be stored."""
    if levels == 0 or random.random() < 0.4:
        return random.choice(PLAIN if random.random() < 0.95 else ODD)
    parts = [wild(random, levels - 1) for _ in range(random.randrange(4))]
    if random.random() < 0.5:
        return tuple(parts) if random.random() < 0.05 else parts
    return {
        random.choice(["a", "b", "\n", '"', 1 if random.random() < 0.05 else "1"]): each
        for each in parts
    }


@pytest.mark.long
def test_a_hundred_thousand_wild_values_come_back_exactly_or_are_refused() -> None:
    random = Random(7)
    for _ in range(100_000):
        check(wild(random, 5))


@given(st.builds(Part, st.text(st.characters()), st.none() | st.floats()))
def test_a_struct_comes_back_exactly_or_is_refused(value: Part) -> None:
    try:
        data = encode(value, Part)
    except Unstorable:
        return
    assert exactly(decode(data, Part), value)


@given(
    st.dictionaries(st.integers(), st.sets(st.datetimes() | st.datetimes(timezones=st.just(UTC))))
)
def test_declared_keys_and_dates_come_back_or_are_refused(value: dict[int, set[datetime]]) -> None:
    try:
        data = encode(value, dict[int, set[datetime]])
    except Unstorable:
        return
    assert decode(data, dict[int, set[datetime]]) == value


class Markup(str):
    """A kind of text, as libraries have it."""

    __slots__ = ()


def test_a_kind_of_text_comes_back_as_text() -> None:
    for declared, value, back in (
        (str, Markup("a\0b"), "a\0b"),
        (Any, {"says": [Markup("\ud800")]}, {"says": ["\ud800"]}),
        (dict[str, str], {"says": Markup("hi")}, {"says": "hi"}),
    ):
        codec: Codec[Any] = Codec(declared)
        found = codec.decode(codec.encode(value))
        assert found == back
