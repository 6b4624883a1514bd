"""Plans that a program wrote to do harm: too large, too deep, and slow to check."""

import json
import sys
from types import FrameType
from typing import Any

import pytest

from perdure.base.errors import DefinitionError, PlanError, Unstorable
from perdure.engine.registry import JobRegistry
from perdure.jobs.plan import (
    DEEPEST_PLAN,
    LARGEST_PLAN,
    LONGEST_PATH,
    MOST_CALLS,
    MOST_PROBLEMS,
    Plan,
    PlanCall,
    Ref,
)

registry = JobRegistry()


@registry.step
async def load(ctx: Any, rows: Any) -> dict[str, int]: ...


def refused(text: str | bytes) -> list[str]:
    with pytest.raises(PlanError) as caught:
        Plan.from_json(text).check(registry)
    return caught.value.problems


def written(*calls: dict[str, Any]) -> str:
    return json.dumps({"name": "p", "calls": calls})


def chain(length: int) -> str:
    """Each call refers to the one before."""
    return written(
        *(
            {"step": "load", "id": f"c{no}", "arguments": {"rows": {"$ref": f"c{max(0, no - 1)}"}}}
            for no in range(length)
        )
    )


def effort(text: str) -> int:
    """Count the calls of functions that a check of a plan makes: its time, on any machine."""
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        Plan.from_json(text).check(registry)
    except PlanError:
        pass
    finally:
        sys.setprofile(None)
    return calls


def doubled_key(size: int) -> str:
    keys = "".join(f'"k{no}":1,' for no in range(size))
    return f'{{"name":"p","calls":[{{"step":"load","arguments":{{{keys}"k{size - 1}":1}}}}]}}'


def many_problems(size: int) -> str:
    return written(*({"step": "load", "id": f"c{no}"} for no in range(size)))


@pytest.mark.parametrize("make", [chain, doubled_key, many_problems])
def test_the_time_of_a_check_grows_as_the_plan_does(make: Any) -> None:
    effort(make(400))  # what is prepared once
    assert effort(make(800)) < 2.5 * effort(make(400))


def test_a_plan_is_no_larger_than_its_limit() -> None:
    text = written({"step": "load", "arguments": {"rows": "x" * LARGEST_PLAN}})
    (problem,) = refused(text)
    assert f"at most {LARGEST_PLAN:,} are allowed" in problem
    made = Plan(PlanCall("load", rows="x" * LARGEST_PLAN), name="p")
    with pytest.raises(PlanError, match="are allowed"):
        made.check(registry)


def test_a_plan_is_no_deeper_than_its_limit() -> None:
    assert refused(
        '{"name":"p","calls":[{"step":"load","arguments":{"rows":' + "[" * 900 + "]" * 900 + "}}]}"
    ) == [f"it is nested deeper than {DEEPEST_PLAN} levels"]
    deep: Any = 1
    for _ in range(DEEPEST_PLAN):
        deep = [deep]
    with pytest.raises(PlanError, match="nested deeper"):
        Plan(PlanCall("load", rows=deep), name="p").check(registry)
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(Unstorable, match="nested deeper"):
        PlanCall("load", rows=deep)


def test_a_text_that_never_ends_is_refused_before_brackets_are_counted_in_it() -> None:
    (problem,) = refused('"' + '\\"' * 100_000)
    assert "must be JSON" in problem


def test_a_plan_has_no_more_calls_than_its_limit() -> None:
    (problem,) = refused(written(*({"step": "x", "id": f"{no}"} for no in range(MOST_CALLS + 1))))
    assert f"at most {MOST_CALLS:,} are allowed" in problem


def test_problems_are_named_up_to_a_limit_and_none_is_long() -> None:
    found = refused(written(*({"step": "x" * 5000, "id": f"c{no}"} for no in range(200))))
    assert len(found) == MOST_PROBLEMS + 1
    assert found[-1] == "and more: correct these first"
    assert max(map(len, found)) < 600
    (problem,) = refused(
        written({"step": "load", "arguments": {"rows": {"$ref": "a" * (LONGEST_PATH + 1)}}})
    )
    assert "are allowed" in problem
    assert len(problem) < 600


def test_the_longest_id_that_fits_is_meant_among_many() -> None:
    dotted = JobRegistry()
    dotted.add(load)
    calls = [PlanCall("load", id=f"a.b{no}", rows=1) for no in range(50)]
    good = Plan(
        *calls, PlanCall("load", id="a", rows=1), PlanCall("load", rows=Ref("a.b7.x")), name="p"
    )
    good.check(dotted)
    with pytest.raises(PlanError, match="names a later call"):
        Plan(
            PlanCall("load", rows=Ref("late.x")), PlanCall("load", id="late", rows=1), name="p"
        ).check(dotted)


def test_the_queue_version_and_tags_of_a_definition_have_lengths() -> None:
    async def work(ctx: Any) -> None: ...

    for options in ({"version": "v" * 101}, {"tags": ["t" * 101]}):
        with pytest.raises(DefinitionError, match="at most 100 are allowed"):
            JobRegistry().step(**options)(load.fn)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DefinitionError, match="at most 100 are allowed"):
        JobRegistry().job(queue="q" * 101)(work)
