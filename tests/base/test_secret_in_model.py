"""Models whose own serializers would give a secret away: the codec does not let them."""

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import Struct
from pydantic import (
    BaseModel,
    PrivateAttr,
    SecretBytes,
    SecretStr,
    computed_field,
    field_serializer,
    model_serializer,
)

from perdure.base.codec import canonical, encode
from perdure.base.errors import Unstorable
from perdure.base.secret import Secret
from perdure.jobs.plan import PlanCall

WORD = "hunter2"


class Field(BaseModel):
    word: SecretStr

    @field_serializer("word")
    def reveal(self, value: SecretStr) -> str:
        return value.get_secret_value()


class Whole(BaseModel):
    word: SecretStr | None

    @model_serializer
    def reveal(self) -> dict[str, Any]:
        return {"word": self.word and self.word.get_secret_value()}


class Anything(BaseModel):
    word: Any

    @field_serializer("word")
    def reveal(self, value: Any) -> Any:
        return value.reveal() if hasattr(value, "reveal") else value


class Octets(BaseModel):
    words: list[SecretBytes]

    @field_serializer("words")
    def reveal(self, value: list[SecretBytes]) -> list[str]:
        return [each.get_secret_value().decode() for each in value]


class Private(BaseModel):
    name: str
    _word: SecretStr = PrivateAttr(default=SecretStr(WORD))

    @computed_field
    @property
    def word(self) -> str:
        return self._word.get_secret_value()


class Outer(BaseModel):
    inner: dict[str, list[Field]]


@dataclass
class Holder:
    model: Field


class Box(Struct):
    model: Field


FIELD = Field(word=SecretStr(WORD))
CASES = [
    (Field, FIELD),
    (Whole, Whole(word=SecretStr(WORD))),
    (Anything, Anything(word=Secret(WORD))),
    (Octets, Octets(words=[SecretBytes(WORD.encode())])),
    (Private, Private(name="kim")),
    (Outer, Outer(inner={"a": [FIELD]})),
    (list[Field], [FIELD]),
    (dict[str, Field], {"a": FIELD}),
    (Holder, Holder(FIELD)),
    (Box, Box(FIELD)),
    (Any, FIELD),
]


@pytest.mark.parametrize(("kind", "value"), CASES, ids=lambda each: repr(type(each).__name__))
def test_a_serializer_cannot_reveal_a_secret(kind: Any, value: Any) -> None:
    with pytest.raises(Unstorable, match=r"secrets? (is|are) never stored") as caught:
        encode(value, kind)
    assert WORD not in str(caught.value)


def test_neither_keys_nor_plans_have_a_secret_in_them() -> None:
    with pytest.raises(Unstorable):
        canonical(FIELD)
    with pytest.raises(Unstorable):
        PlanCall("pay", login=FIELD)


def test_a_model_without_its_secret_is_stored() -> None:
    assert encode(Whole(word=None), Whole) == b'{"word":null}'
    assert encode(Anything(word=[1, {"a": "b"}]), Anything) == b'{"word":[1,{"a":"b"}]}'
