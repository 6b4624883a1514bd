"""Registries, and steps that are classes."""

from typing import Any, ClassVar

import pytest

from perdure.base.errors import DefinitionError, UnknownName
from perdure.base.retry import Retry
from perdure.engine.registry import JobRegistry
from perdure.jobs.definition import step_of


async def charge(ctx: Any, amount: int) -> str:
    return f"charged {amount}"


async def refund(ctx: Any) -> None: ...


def test_what_is_decorated_is_found_by_name() -> None:
    registry = JobRegistry()
    step = registry.step(charge)
    job = registry.job(queue="slow")(refund)
    assert registry.find_step("charge") is step
    assert registry.find_job("refund") is job
    assert (registry.name(step), registry.name(job)) == ("charge", "refund")
    assert (list(registry.steps), list(registry.jobs)) == (["charge"], ["refund"])


def test_a_step_and_a_job_may_share_a_name() -> None:
    registry = JobRegistry()
    registry.step(refund)
    registry.job(refund)
    assert registry.find_step("refund").name == registry.find_job("refund").name


def test_an_unknown_name_brings_those_that_look_like_it() -> None:
    registry = JobRegistry()
    registry.step(charge)
    with pytest.raises(UnknownName, match=r"there is no step 'chrage'; did you mean charge\?"):
        registry.find_step("chrage")
    with pytest.raises(LookupError, match=r"there is no job 'xyz'$"):
        registry.find_job("xyz")


def test_a_name_is_taken_once() -> None:
    registry = JobRegistry()
    registry.step(charge)
    with pytest.raises(DefinitionError, match="step 'charge' is defined twice"):
        registry.step(name="charge")(refund)
    with pytest.raises(DefinitionError, match="step 'charge' is defined twice"):
        registry.add(registry.find_step("charge"))


def test_an_included_registry_brings_what_it_has_and_what_it_gets_later() -> None:
    app, billing, cards = JobRegistry(), JobRegistry(prefix="billing."), JobRegistry()
    early = cards.step(charge)
    billing.include(cards, prefix="cards.")
    app.include(billing)
    late = cards.step(refund)
    assert app.find_step("billing.cards.charge") is early
    assert app.name(late) == "billing.cards.refund"
    assert billing.name(late) == "billing.cards.refund"
    assert cards.name(late) == "refund"


def test_a_name_taken_above_is_refused_below_and_nothing_changes() -> None:
    app, part = JobRegistry(), JobRegistry()
    app.step(charge)
    app.include(part)
    with pytest.raises(DefinitionError, match="step 'charge' is defined twice"):
        part.step(charge)
    assert not part.steps
    other = JobRegistry()
    other.step(refund)
    other.step(charge)
    with pytest.raises(DefinitionError, match="defined twice"):
        app.include(other)
    assert list(app.steps) == ["charge"]


def test_a_registry_is_included_once_and_never_in_itself() -> None:
    app, part = JobRegistry(), JobRegistry()
    part.step(charge)
    app.include(part)
    with pytest.raises(DefinitionError, match="already registered as charge"):
        app.include(part, prefix="again.")
    with pytest.raises(DefinitionError, match="cannot include itself"):
        part.include(app)
    with pytest.raises(DefinitionError, match="cannot include itself"):
        app.include(app)


def test_a_prefix_must_make_a_name() -> None:
    with pytest.raises(DefinitionError, match="cannot be the name"):
        JobRegistry(prefix="my steps.").step(charge)


def test_a_step_of_another_registry_has_no_name_here() -> None:
    with pytest.raises(UnknownName, match="include its registry"):
        JobRegistry().name(step_of(charge))


class Bulk:
    """Convert many files."""

    name = "bulk"
    retry = Retry(7)
    timeout = "10m"
    tags = ("files",)
    undone: ClassVar[list[Any]] = []

    async def execute(self, input: list[str], ctx: Any) -> int:
        return len(input) + ctx

    async def compensate(self, input: list[str], partial_output: int | None, ctx: Any) -> None:
        self.undone.append((input, partial_output, ctx))

    def idempotency_key(self, input: list[str]) -> str:
        return ",".join(input)


async def test_a_class_is_a_step_with_its_options() -> None:
    registry = JobRegistry()
    step = registry.step(Bulk)
    assert registry.find_step("bulk") is step
    assert (step.retry, step.timeout, step.tags) == (Retry(7), 600, frozenset({"files"}))
    assert step.description == "Convert many files."
    args, kwargs = step.unpack(step.pack((["a"],), {}))
    assert await step.fn(1, *args, **kwargs) == 2
    assert step.key(args, kwargs) == "a"
    assert step.undo is not None
    await step.undo.invoke("ctx", args, kwargs, 5)
    assert Bulk.undone.pop() == (["a"], 5, "ctx")


def test_an_object_with_execute_is_added_and_its_name_may_be_a_method() -> None:
    class Sync:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def name(self) -> str:
            return f"times{self.factor}"

        def execute(self, input: int, ctx: Any) -> int:
            return input * self.factor

    registry = JobRegistry()
    step = registry.add(Sync(3))
    assert registry.find_step("times3") is step
    assert (step.fn(None, 2), step.isolation, step.undo) == (6, "thread", None)
    assert step.key((2,), {}) is None


@pytest.mark.parametrize(
    "thing", [3, Bulk, object(), charge], ids=["number", "class", "object", "step"]
)
def test_what_has_no_execute_is_not_added(thing: Any) -> None:
    with pytest.raises(DefinitionError, match="is not a step"):
        JobRegistry().add(thing)


def test_a_class_without_a_name_is_refused() -> None:
    class Nameless:
        async def execute(self, input: int, ctx: Any) -> int:
            return input

    thing: Any = Nameless()
    with pytest.raises(DefinitionError, match="the name of a step must be a string"):
        JobRegistry().add(thing)
