import pytest

from perdure.jobs.approval import same_person, spelled


@pytest.mark.parametrize(
    "name",
    [
        "Kim",
        " kim\t",
        "KIM",
        "k\u200bim",  # a zero-width space
        "k\u00adim",  # a soft hyphen
        "\uff4b\uff49\uff4d",  # wide letters
    ],
)
def test_a_name_has_one_spelling(name: str) -> None:
    assert spelled(name) == "kim"


@pytest.mark.parametrize(
    "name",
    [
        "\u043aim",  # Cyrillic
        "\u041aIM",
        "k\u0456m",
        "k\u03b9m",  # Greek
        "\u039aim",
        "k\u0131m",  # without its dot
        "k\u0130m",  # with a dot
        "k1m",
        "klm",
        "ki\u0301m",  # with an accent
        "kim\ufe0f",  # with a variation selector
        "kim\u3164",  # with a blank that is no space
        "kirn",
        "kim@example.com",
        "Kim+jobs@example.com",
    ],
)
def test_what_could_be_the_same_person_is(name: str) -> None:
    assert same_person(["kim"], [name])
    assert same_person([name], ["somebody", "kim"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["kim"], ["lee"]),
        (["kim"], ["kim smith"]),
        (["kim@one.example"], ["kim@other.example"]),
        (["kim@one.example"], ["kim", "kim@other.example"]),
        (["user-10"], ["user-11"]),
        ([""], ["kim"]),
    ],
)
def test_others_are_others(one: list[str], other: list[str]) -> None:
    assert not same_person(one, other)


def test_a_name_that_only_looks_right_is_not_the_name() -> None:
    assert spelled("\u043aim") != spelled("kim")
