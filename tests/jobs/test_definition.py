"""Steps and jobs as they are defined, and what their calls become."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, cast

import msgspec
import pytest
from msgspec import Struct
from pydantic import BaseModel

from perdure.app import App
from perdure.base.codec import PayloadLimits
from perdure.base.errors import (
    ArgumentError,
    DefinitionError,
    Drift,
    PayloadTooLarge,
    StoreError,
    Unstorable,
    WrongType,
)
from perdure.base.retry import Retry
from perdure.base.secret import Secret
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.jobs.definition import job_of, step_of
from perdure.jobs.parameters import Partial

if TYPE_CHECKING:
    from perdure.nowhere import Context  # pyright: ignore[reportMissingImports, reportUnknownVariableType]


class Report(Struct):
    rows: int


class Mail(BaseModel):
    to: str


@dataclass
class Customer:
    name: str
    mails: list[Mail]


async def mixed(
    ctx: Any, customer: Customer, count: int = 3, /, label: str = "x", *, loud: bool, to: Any = None
) -> Report:
    """Do many things.

    At length.
    """
    return Report(count)


async def count(ctx: Any, a: int, b: str) -> int:
    return a


CUSTOMER = Customer("kim", [Mail(to="a")])


def test_a_call_becomes_json_by_parameter_name_and_comes_back_typed() -> None:
    step = step_of(mixed)
    data = step.pack((CUSTOMER, 5), {"loud": True})
    assert msgspec.json.decode(data) == {
        "customer": {"name": "kim", "mails": [{"to": "a"}]},
        "count": 5,
        "label": "x",
        "loud": True,
        "to": None,
    }
    assert step.unpack(data) == ((CUSTOMER, 5, "x"), {"loud": True, "to": None})


def test_models_may_be_one_of_several_types_of_a_parameter() -> None:
    async def either(ctx: Any, what: Mail | str | list[Mail] | None) -> Mail | int: ...

    step = step_of(either)
    for value in (Mail(to="a"), "a", [Mail(to="b")], None):
        assert step.unpack(step.pack((value,), {})) == ((value,), {})
    for result in (Mail(to="a"), 3):
        assert step.unpack_result(step.pack_result(result)) == result


def test_defaults_are_stored_so_that_a_new_default_changes_no_old_call() -> None:
    async def greet(ctx: Any, word: str = "hello", names: Sequence[str] = ("a",)) -> None: ...

    assert step_of(greet).pack((), {}) == b'{"word":"hello","names":["a"]}'


def test_a_call_stored_before_a_parameter_was_added_gets_its_default() -> None:
    async def greet(ctx: Any, word: str, loud: bool = False) -> None: ...

    assert step_of(greet).unpack(b'{"word":"x"}') == (("x", False), {})


def test_a_step_without_parameters_takes_none() -> None:
    async def tick(ctx: Any) -> None: ...

    step = step_of(tick)
    assert step.pack((), {}) == b"{}"
    assert step.unpack(b"{}") == ((), {})


def test_arguments_that_do_not_fit_are_all_named_at_once() -> None:
    with pytest.raises(ArgumentError) as caught:
        step_of(mixed).pack(("x", "y"), {"colour": 1})
    assert len(caught.value.problems) == 4
    text = str(caught.value)
    assert text.startswith("the arguments of step 'mixed' do not fit: ")
    for part in ("`loud` is missing", "no parameter `colour`", "`customer` is not", "`count` is"):
        assert part in text


def test_too_many_and_doubled_arguments_are_named() -> None:
    with pytest.raises(ArgumentError) as caught:
        step_of(count).pack((1, "x", 3), {"a": 2})
    assert "3 positional arguments were given, but it takes 2" in str(caught.value)
    assert "`a` is given twice" in str(caught.value)


def test_arguments_that_fit_but_cannot_be_stored_are_named_with_their_path() -> None:
    with pytest.raises(Unstorable, match="the arguments of step 'count', at b: it would come"):
        step_of(count).pack((1, "\ud83d\ude00"), {})
    with pytest.raises(PayloadTooLarge, match=r"Limits\.argument"):
        step_of(count).pack((1, "x" * 50), {}, PayloadLimits(argument=40))


def test_arguments_that_somebody_wrote_as_json_are_checked() -> None:
    parameters = step_of(mixed).parameters
    data = parameters.pack_json('{"customer": {"name": "kim", "mails": []}, "loud": true}')
    assert step_of(mixed).unpack(data)[0][0] == Customer("kim", [])
    with pytest.raises(ArgumentError) as caught:
        parameters.pack_json('{"customer": {"name": 3}, "lout": true}')
    assert len(caught.value.problems) == 3
    with pytest.raises(ArgumentError, match="must be a JSON object"):
        parameters.pack_json("[1]")
    with pytest.raises(Unstorable, match="an object has the key"):
        parameters.pack_json('{"loud": true, "loud": false}')


def test_parameters_are_described_for_those_who_write_arguments() -> None:
    described = step_of(mixed).parameters.schema()["$defs"]["Arguments"]
    assert described["required"] == ["customer", "loud"]
    assert described["properties"]["loud"] == {"type": "boolean"}
    assert described["additionalProperties"] is False


@pytest.mark.parametrize("stored", [b'{"a":"x","b":"y"}', b'{"a":1}', b'{"a":1,"b":"","c":1}'])
def test_stored_arguments_that_do_not_fit_the_code_any_more_are_a_drift(stored: bytes) -> None:
    with pytest.raises(Drift, match="the arguments of step 'count'"):
        step_of(count).unpack(stored)


def test_a_result_is_stored_by_its_declared_type() -> None:
    step = step_of(mixed)
    assert step.pack_result(Report(3)) == b'{"rows":3}'
    assert step.unpack_result(b'{"rows":3}') == Report(3)
    with pytest.raises(WrongType, match="the result of step 'mixed'"):
        step.pack_result(None)


def test_without_an_annotation_a_result_is_plain_json() -> None:
    step: Any = step_of(eval("lambda ctx, x: x"), name="anything")
    assert step.unpack_result(step.pack_result({"a": [1]})) == {"a": [1]}
    with pytest.raises(Unstorable, match="declare its type"):
        step.pack_result((1, 2))


def test_partial_is_no_part_of_the_type_of_the_result() -> None:
    async def whole(ctx: Any) -> Partial[int]: ...
    async def either(ctx: Any) -> int | Partial[int] | None: ...
    async def never(ctx: Any) -> NoReturn: ...

    assert step_of(whole).result_type is int
    assert step_of(either).result_type == int | None
    assert step_of(never).result_type is Any


def test_the_type_of_the_context_need_not_exist() -> None:
    async def quoted(ctx: "Context", a: "int") -> "Report": ...  # pyright: ignore[reportUnknownParameterType]

    step: Any = step_of(quoted)  # pyright: ignore[reportUnknownArgumentType]
    assert step.unpack(b'{"a":1}') == ((1,), {})
    assert step.result_type is Report


def test_options_are_read_and_have_defaults() -> None:
    step = step_of(
        mixed,
        name="m",
        retry=Retry(2),
        timeout="2m",
        tags=["a", "a"],
        estimated_duration="1h",
        cost=3.5,
    )
    assert (step.name, step.timeout, step.tags, step.estimated_duration) == (
        "m",
        120,
        frozenset({"a"}),
        3600,
    )
    assert step.retry == Retry(2)
    assert step.description == "Do many things."
    plain = step_of(count)
    assert (plain.name, plain.version, plain.retry, plain.timeout) == ("count", "1", None, None)
    assert plain.description == ""


def test_async_code_runs_on_the_loop_and_other_code_in_a_thread() -> None:
    def sync(ctx: Any) -> None: ...

    class Callable:
        async def __call__(self, ctx: Any) -> None: ...

    assert (step_of(count).isolation, step_of(count).is_async) == ("inline", True)
    assert (step_of(sync).isolation, step_of(sync).is_async) == ("thread", False)
    assert step_of(Callable(), name="c").is_async
    assert step_of(count, isolation="process").isolation == "process"


async def test_the_function_of_a_step_can_be_called_by_itself() -> None:
    assert await step_of(count).fn(None, 3, "x") == 3


def test_a_call_is_data() -> None:
    step = step_of(count)
    call = step(3, "x")
    assert (call.definition, call.args, call.kwargs) == (step, (3, "x"), {})
    assert call == step(3, "x") != step(4, "x")
    assert repr(call) == "count(3, 'x')"


async def many(ctx: Any, *args: int) -> None: ...
async def named(ctx: Any, **kwargs: int) -> None: ...
async def of_a_job(ctx: JobContext) -> None: ...
async def of_a_sync_step(ctx: SyncStepContext) -> None: ...
def of_an_async_step(ctx: StepContext) -> None: ...
async def yields(ctx: Any) -> Any:
    yield 1


async def secret(ctx: Any, token: Secret[str]) -> None: ...
async def no_data(ctx: Any, loop: complex) -> None: ...
async def bad_default(ctx: Any, a: int = None) -> None: ...  # noqa: RUF013  # pyright: ignore[reportArgumentType]
async def nowhere(ctx: Any, a: "Nowhere") -> None: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]


class Shop:
    async def price(self, item: int) -> int:
        return item * 2

    @classmethod
    async def prices(cls, item: int) -> int:
        return item * 3


BAD: list[tuple[Any, str]] = [
    (Shop.price, "step 'price' is a method, .*`self` .*`app.step\\(shop.price\\)`"),
    (Shop.prices.__func__, "step 'prices' is a method, and its `cls` cannot be stored"),
    (many, "must take named parameters: `\\*args` and"),
    (named, "must take named parameters: `\\*args` and"),
    (of_a_job, "takes a JobContext, the context of a job: annotate it as StepContext"),
    (of_a_sync_step, "takes a SyncStepContext, .*: annotate it as StepContext"),
    (of_an_async_step, "takes a StepContext, .*: annotate it as SyncStepContext"),
    (yields, "must return its result, not yield it"),
    (secret, "a secret is never stored"),
    (no_data, "`loop` of step 'no_data' cannot have the type"),
    (bad_default, "the default cannot be stored"),
    (nowhere, "cannot be resolved"),
    (3, "the name of a step must be a string"),
]


@pytest.mark.parametrize(("fn", "why"), BAD)
def test_a_function_that_cannot_be_a_step_is_refused(fn: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        step_of(fn)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "a b"}, "cannot be the name"),
        ({"name": "a#1"}, "cannot be the name"),
        ({"name": "x" * 201}, "cannot be the name"),
        ({"timeout": "soon"}, "timeout of step 'count'"),
        ({"timeout": -1}, "timeout of step 'count'"),
        ({"retry": 3}, "retry of step 'count' must be a Retry"),
        ({"tags": "financial"}, "tags of step 'count' must be a set of strings"),
        ({"risk": "huge"}, "risk must be one of low, medium, high, critical, not 'huge'"),
        ({"irreversible": "no"}, "`irreversible` of step 'count' must be True or False, not 'no'"),
        ({"cost": "1 USD"}, "`cost` of step 'count' must be a number, not '1 USD'"),
        ({"isolation": "jail"}, "must be one of inline, thread, process"),
        ({"approval": "maybe"}, "approval of step 'count' must be one of required, by_risk, never"),
        ({"approval": "never", "risk": "high"}, "a step of high risk cannot opt out of approval"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        step_of(count, **options)


def test_a_method_cannot_be_a_job_either_but_that_of_an_object_can_be_a_step() -> None:
    with pytest.raises(DefinitionError, match=r"job 'price' .*`app\.job\(shop\.price\)`"):
        job_of(Shop.price)
    for bound in (Shop().price, Shop.prices):
        assert [each.name for each in step_of(bound).parameters.all] == ["item"]


def test_a_local_function_cannot_run_in_another_os_process() -> None:
    async def local(ctx: Any) -> None: ...

    with pytest.raises(DefinitionError, match="at the top of a module"):
        step_of(local, isolation="process")


def test_a_job_is_async_and_has_its_own_options() -> None:
    def sync(ctx: Any) -> None: ...

    with pytest.raises(DefinitionError, match="must be `async def`"):
        job_of(sync)
    with pytest.raises(DefinitionError, match="on_cancel of job 'count' must be one of"):
        job_of(count, on_cancel="explode")  # pyright: ignore[reportArgumentType]
    job = job_of(count, queue="slow", priority=3, timeout="1h", on_cancel="compensate")
    assert (job.queue, job.priority, job.timeout) == ("slow", 3, 3600)
    assert (job.on_cancel, job.on_outage, job.max_claims) == ("compensate", "park", 5)
    assert job.unpack(job.pack((1, "x"), {})) == ((1, "x"), {})
    assert job.unpack_result(job.pack_result(3)) == 3


def test_a_compensation_gets_the_arguments_and_the_output() -> None:
    step = step_of(mixed)
    seen: list[Any] = []

    @step.compensate(retry=Retry(9), timeout="5s")
    def undo(ctx: Any, customer: Customer, *rest: Any, loud: bool, to: Any) -> None:
        seen.append((ctx, customer, *rest, loud, to))

    assert step.undo is not None
    args, kwargs = step.unpack(step.pack((CUSTOMER,), {"loud": True}))
    step.undo.invoke("ctx", args, kwargs, Report(1))
    assert seen == [("ctx", CUSTOMER, 3, "x", Report(1), True, None)]
    assert (step.undo.retry, step.undo.timeout, step.undo.isolation) == (Retry(9), 5.0, "thread")
    with pytest.raises(DefinitionError, match="already has a compensation"):
        step.compensate(undo)


def test_a_compensation_without_the_right_parameters_is_refused() -> None:
    async def undo(ctx: Any, a: int) -> None: ...

    with pytest.raises(DefinitionError, match=r"must take \(ctx, a, b, output\)"):
        step_of(count).compensate(undo)


async def nothing() -> None: ...
async def named_ctx(ctx, a: int) -> None: ...  # noqa: ANN001  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
async def named_otherwise(first, a: int) -> None: ...  # noqa: ANN001  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
async def annotated(anything: StepContext, a: int) -> None: ...
async def another_type(ctx: int) -> None: ...
async def only_by_name(*, ctx: int) -> None: ...


FIRST_PARAMETERS: list[tuple[Any, list[str], bool]] = [
    (nothing, [], False),
    (named_ctx, ["a"], True),
    (named_otherwise, ["first", "a"], False),
    (annotated, ["a"], True),
    (another_type, ["ctx"], False),
    (only_by_name, ["ctx"], False),
]


@pytest.mark.parametrize(("fn", "names", "takes_context"), FIRST_PARAMETERS)
def test_a_context_is_taken_only_where_one_is_wanted(
    fn: Any, names: list[str], takes_context: bool
) -> None:
    step = step_of(fn)
    assert [each.name for each in step.parameters.all] == names
    assert step.takes_context is takes_context


def test_an_unknown_option_is_refused_with_the_one_that_was_meant() -> None:
    app = App("sqlite:///never-opened.db")
    options = cast("Any", {"timeuot": "2s"})
    with pytest.raises(DefinitionError, match=r"unknown option `timeuot` .*did you mean `timeout`"):
        app.step(**options)
    with pytest.raises(DefinitionError, match=r"unknown option `timeuot` .*did you mean `timeout`"):
        app.job(**options)
    with pytest.raises(DefinitionError, match="unknown option `timeuot` of the compensation"):
        app.step(nothing).compensate(**options)(nothing)


@pytest.mark.parametrize("url", ["jobs.db", "mysql://x", "sqlite://jobs.db", "sqlite:///a.db?x=1"])
def test_an_app_refuses_a_url_that_it_could_never_open(url: str) -> None:
    with pytest.raises(StoreError):
        App(url)


def test_options_of_a_call_are_checked_where_they_are_written() -> None:
    step, job = step_of(nothing), job_of(nothing)
    assert step().options(timeout="2m", retry=Retry(9), id="x").given.timeout == 120
    for refused in (
        lambda: step().options(queue="q"),
        lambda: job().options(retry=Retry(2)),
        lambda: step().options(id=""),
        lambda: step().options(timeout="soon"),
    ):
        with pytest.raises(DefinitionError):
            refused()
