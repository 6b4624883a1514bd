"""Plans: as Python, as JSON, and everything that can be wrong with them."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from pydantic import BaseModel

from perdure.base.errors import ArgumentError, PlanError, Unstorable
from perdure.engine.registry import JobRegistry
from perdure.jobs.plan import Plan, PlanCall, Ref, fill_refs, refs, split_path


class Extract(Struct):
    rows: list[int]
    name: str
    next: "Extract | None" = None


class Mail(BaseModel):
    to: str
    copies: list["Mail"] = []


@dataclass
class Point:
    x: int


registry = JobRegistry()


@registry.step
async def extract(ctx: Any, source: str) -> Extract: ...


@registry.step
async def load(ctx: Any, rows: list[int], label: str = "none", *, id: int = 0) -> int: ...


@registry.step(name="mail.send")
async def send(ctx: Any, mail: Mail, points: list[Point] | None = None) -> dict[str, Mail]: ...


@registry.step
def anything(ctx: Any, x: Any, weight: float = 0) -> Any: ...


MIGRATION = Plan(
    PlanCall("extract", source="a"), PlanCall("load", rows=Ref("extract.rows")), name="migration"
)


def problems(*calls: PlanCall, name: str = "p") -> list[str]:
    with pytest.raises(PlanError) as caught:
        Plan(*calls, name=name).check(registry)
    assert str(caught.value).startswith("the plan cannot run:\n- ")
    return caught.value.problems


def test_a_plan_is_checked_stored_and_read_again() -> None:
    MIGRATION.check(registry)
    assert json.loads(MIGRATION.to_json()) == {
        "name": "migration",
        "calls": [
            {"step": "extract", "arguments": {"source": "a"}},
            {"step": "load", "arguments": {"rows": {"$ref": "extract.rows"}}},
        ],
    }
    assert Plan.from_json(MIGRATION.to_json()) == MIGRATION


def test_outputs_take_the_place_of_references_and_are_typed() -> None:
    outputs = {"extract": Extract([1, 2], "n")}
    assert MIGRATION.resolve(MIGRATION.calls[1], outputs, load) == (([1, 2],), {})
    assert MIGRATION.resolve(MIGRATION.calls[0], {}, extract) == (("a",), {})


def test_references_may_be_inside_of_arguments_and_lead_deep() -> None:
    plan = Plan(
        PlanCall("mail.send", mail=Mail(to="a"), points=[Point(1)]),
        PlanCall("anything", x={"a": [Ref('mail.send["k 1"].to'), 1], "b": Ref("mail.send")}),
        name="deep",
    )
    plan.check(registry)
    outputs = {"mail.send": {"k 1": Mail(to="b")}}
    args, _ = plan.resolve(plan.calls[1], outputs, anything)
    assert args[0] == {"a": ["b", 1], "b": {"k 1": {"to": "b", "copies": []}}}
    assert plan.resolve(plan.calls[0], {}, send)[0] == (Mail(to="a"), [Point(1)])


def test_a_step_may_be_called_twice_under_different_ids() -> None:
    twice = [PlanCall("extract", source="a"), PlanCall("extract", id="second", source="b")]
    plan = Plan(
        *twice, PlanCall("load", rows=Ref("second.rows"), label=Ref("extract.name")), name="twice"
    )
    plan.check(registry)
    assert Plan.from_json(plan.to_json()) == plan
    assert problems(*twice, PlanCall("extract", source="c")) == [
        "two calls have the id 'extract': give one of them another `id`"
    ]


def test_a_parameter_may_be_called_id() -> None:
    plan = Plan(PlanCall.of("load", {"rows": [1], "id": 7}, id="l"), name="p")
    plan.check(registry)
    assert plan.resolve(plan.calls[0], {}, load) == (([1],), {"id": 7})


def test_every_problem_is_named_at_once() -> None:
    found = problems(
        PlanCall("extrac", source=1),
        PlanCall("extract", sauce="a"),
        PlanCall("load", rows=Ref("extract.lines"), label=Ref("later.name")),
        PlanCall("load", id="l2", rows=[1, "x"], label=Ref("nobody")),
        PlanCall("load", id="l3", rows=Ref("extract.name"), label=3),
        PlanCall("extract", id="later", source=Ref("later.name")),
        name="",
    )
    assert found == [
        "the name of a plan or call must be a string, not ''",
        "call extrac: there is no step 'extrac'; did you mean extract?",
        "call extract: `source` is missing",
        "call extract: there is no parameter `sauce`",
        "call load: the reference 'extract.lines' names what step 'extract' does not return",
        "call load: the reference 'later.name' names a later call",
        "call l2: the reference 'nobody' names no call of the plan",
        "call l2: `rows` has the wrong type: Expected `int`, got `str` - at `$[1]`",
        "call l3: `rows` takes array, but 'extract.name' is string",
        "call l3: `label` has the wrong type: Expected `str`, got `int`",
        "call later: the reference 'later.name' names a later call",
    ]


@pytest.mark.parametrize(
    ("path", "fits"),
    [
        ("extract", True),
        ("extract.rows", True),
        ("extract.rows[0]", True),
        ("extract.next.next.name", True),
        ("extract.rows.x", False),
        ("extract[0]", False),
        ("extract.rows[-1]", False),
        ("extract.", False),
        ("extract.next.rwos", False),
        ("mail.send.any.to", True),
        ("mail.send.any.copies[3].whatever", True),  # a model within itself: not looked into
        ("mail.send.any.too", False),
        ("free.a[1].b", True),
    ],
)
def test_a_reference_must_lead_to_what_the_step_declares(path: str, *, fits: bool) -> None:
    calls = [
        PlanCall("extract", source="a"),
        PlanCall("mail.send", mail=Mail(to="a")),
        PlanCall("anything", id="free", x=1),
        PlanCall("anything", id="last", x=Ref(path)),
    ]
    if fits:
        Plan(*calls, name="p").check(registry)
    else:
        assert len(problems(*calls)) == 1


def test_an_int_will_do_where_a_float_is_taken() -> None:
    Plan(PlanCall("load", rows=[]), PlanCall("anything", x=1, weight=Ref("load")), name="p").check(
        registry
    )


def test_a_plan_needs_calls() -> None:
    assert problems() == ["it has no calls"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"name": "p"}',
        '{"name": "p", "calls": [{"step": "a", "args": {}}]}',
        '{"name": "p", "calls": [{"step": "a", "arguments": []}]}',
        '{"name": "p", "calls": [{"step": "a", "arguments": {"x": 1, "x": 2}}]}',
        '{"name": "p", "calls": [{"step": "a", "arguments": {"x": NaN}}]}',
    ],
)
def test_json_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        Plan.from_json(text)


def test_arguments_that_cannot_be_stored_are_refused_when_written() -> None:
    with pytest.raises(Unstorable, match="at x: JSON cannot represent nan"):
        PlanCall("anything", x=float("nan"))


def test_what_a_step_really_gave_is_checked_when_it_is_used() -> None:
    plan = Plan(PlanCall("anything", x=1), PlanCall("load", rows=Ref("anything.rows")), name="p")
    plan.check(registry)
    with pytest.raises(PlanError, match=r"call load: the reference 'anything\.rows' leads nowhere"):
        plan.resolve(plan.calls[1], {"anything": {"lines": []}}, load)
    with pytest.raises(ArgumentError, match="`rows` has the wrong type"):
        plan.resolve(plan.calls[1], {"anything": {"rows": ["x"]}}, load)


def test_the_longest_id_that_fits_is_meant() -> None:
    assert split_path("a.b.c", ["a", "a.b"]) == ("a.b", ["c"])
    assert split_path("a.bc", ["a", "a.b"]) == ("a", ["bc"])
    assert split_path("x", ["a"]) is None


def test_an_object_with_more_than_a_reference_is_none() -> None:
    value = {"$ref": "a", "x": 1}
    assert list(refs(value)) == []
    assert fill_refs(value, {"a": 3}) == value


plain = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
    max_leaves=8,
)


@given(st.lists(plain, max_size=4))
def test_any_plan_comes_back_from_its_json(values: list[Any]) -> None:
    calls: list[PlanCall] = []
    for number, value in enumerate(values):
        try:
            calls.append(PlanCall("anything", id=f"c{number}", x=value))
        except Unstorable:
            continue
    plan = Plan(*calls, name="p")
    assert Plan.from_json(plan.to_json()) == plan


@given(plain)
def test_without_references_arguments_are_as_they_were(value: Any) -> None:
    if not list(refs(value)):
        assert fill_refs(value, {}) == value
