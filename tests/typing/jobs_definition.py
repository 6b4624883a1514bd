"""What type checkers must know of steps and jobs; checked by basedpyright, never run."""

from typing import Any, ParamSpec, TypeVar, assert_type

from perdure.base.retry import Retry
from perdure.jobs.definition import Step
from perdure.jobs.parameters import Partial
from perdure.jobs.registry import JobRegistry

P = ParamSpec("P")
R = TypeVar("R")

registry = JobRegistry()


class Context:
    job_id: str


def run(step: Step[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...


@registry.step
async def size(ctx: Context, path: str, *, limit: int = 0) -> int: ...


@registry.step(retry=Retry(attempts=5), timeout="2m", tags={"financial"})
async def pay(ctx: Context, amount: float) -> str: ...


@registry.step
def plain(ctx: Context, name: str) -> list[str]: ...


@registry.step
async def long(ctx: Context, count: int) -> str | Partial[str]: ...


@registry.step
class Convert:
    name = "convert"

    async def execute(self, input: list[str], ctx: Context) -> int: ...


@registry.job
async def nightly(ctx: Context, day: str) -> bool: ...


@registry.job(queue="slow", on_cancel="compensate")
async def weekly(ctx: Context) -> None: ...


@pay.compensate
async def refund(ctx: Context, amount: float, receipt: str | None) -> None: ...


@pay.compensate(retry=Retry(attempts=9))
async def refund_again(ctx: Context, amount: float, receipt: str | None) -> None: ...


def steps() -> None:
    assert_type(run(size, "x", limit=3), int)
    assert_type(run(pay, 1.5), str)
    assert_type(run(plain, "x"), list[str])
    assert_type(run(long, 1), str)
    assert_type(run(Convert, ["a"]), int)
    assert_type(size.unpack_result(b"1"), int)
    assert_type(pay.unpack(b"{}"), tuple[tuple[Any, ...], dict[str, Any]])
    run(size, 1)  # pyright: ignore[reportArgumentType]
    run(size)  # pyright: ignore[reportCallIssue]
    run(size, "x", most=1)  # pyright: ignore[reportCallIssue]
    run(Convert, 3)  # pyright: ignore[reportArgumentType]
    registry.step(attempts=3)  # pyright: ignore[reportCallIssue]


def jobs() -> None:
    assert_type(nightly.unpack_result(b"true"), bool)
    assert_type(weekly.unpack_result(b"null"), None)
    nightly(None, 1)  # pyright: ignore[reportArgumentType]
    registry.job(on_cancel="explode")  # pyright: ignore[reportArgumentType]


async def compensations() -> None:
    await refund(Context(), 1.0, None)
    await refund_again(Context(), 1.0, None)
