"""A step as one transaction of the user's own database: its work and its result commit together.

    @app.transaction("postgresql://…/shop")
    async def charge(db: psycopg.AsyncConnection, order: int) -> int: ...

A step is recorded in the journal after it was done: a crash in between lets it run again. Here the
result is written to the table `perdure_transaction` of the user's database, in the transaction of
the work itself. The next attempt finds it there, and does not call the function:

1. Begin. Insert the row of this step, without a result.
   If it is there, the work was done: return its result.
2. Call the function. Write its result into the row. Commit.
3. Return the result, which the journal records as that of any step.

The row comes first because attempts may overlap: one that was believed dead may still work. The
primary key makes the second one wait at its insert until the first one has committed, and then it
finds the result; or until the first one was rolled back, and then the row is its own. SQLite has
one writer at a time anyway, from BEGIN IMMEDIATE on. So it does not matter which attempt commits,
and an attempt that has lost its lease may: it happens once, and the owner of the job finds it.

An attempt that was told to stop, although its thread goes on, does not commit. A commit whose
answer is lost leaves the step in doubt only until the next attempt looks.

A compensation may be a transaction, too. It looks for the row of the step that it undoes. If the
step has committed, the function gets its result, also if the journal never did. If not, the row is
inserted without a result: an attempt that is still under way cannot commit any more.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import update_wrapper
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast, overload

from msgspec import Struct

from perdure.base.clock import SystemClock
from perdure.base.codec import Codec, PayloadLimits, digest
from perdure.base.errors import DefinitionError, Drift, Permanent
from perdure.engine import crashpoint
from perdure.engine.journal.verdict import Unwound
from perdure.engine.steps.step_context import (
    AnyStepContext,
    StepContext,
    StepPort,
    StepProgress,
    SyncStepContext,
    port_of,
    progress_of,
)
from perdure.engine.steps.thread_step import call_in_thread
from perdure.engine.steps.user_database import (
    Statement,
    UserTransaction,
    check_database,
    done,
    exists_already,
    in_transaction,
    is_async_database,
    is_repeatable,
    lacks_table,
    opened,
)
from perdure.jobs.definition import Step, check_function, is_async
from perdure.jobs.parameters import Partial, parameters_of, result_type
from perdure.process.waiter import set_process

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
T = TypeVar("T")

TABLE: Final = "perdure_transaction"

# How often a transaction is repeated at once that the database rolled back because of others. After
# that, the retry policy of the step decides.
_TRIES: Final = 5

_CREATE: Final = Statement(
    f"CREATE TABLE IF NOT EXISTS {TABLE} (key text PRIMARY KEY, job_id text NOT NULL, "
    "step text NOT NULL, input text NOT NULL, result text, at double precision NOT NULL)"
)
_CLAIM: Final = Statement(
    f"INSERT INTO {TABLE} (key, job_id, step, input, at) "  # noqa: S608  a constant
    "VALUES (:key, :job_id, :step, :input, :at) ON CONFLICT (key) DO NOTHING",
    *("key", "job_id", "step", "input", "at"),
)
_FIND: Final = Statement(f"SELECT input, result FROM {TABLE} WHERE key = :key", "key")  # noqa: S608  a constant
_RECORD: Final = Statement(f"UPDATE {TABLE} SET result = :result WHERE key = :key", "result", "key")  # noqa: S608  a constant
_OLD_JOBS: Final = Statement(
    f"SELECT DISTINCT job_id FROM {TABLE} WHERE at < :before",  # noqa: S608  a constant
    "before",
)
_FORGET: Final = Statement(
    f"DELETE FROM {TABLE} WHERE job_id = :job_id AND at < :before",  # noqa: S608  a constant
    *("job_id", "before"),
)

_CLOCK: Final = SystemClock()


class InTransaction:
    """What `transaction(db)` returns: a decorator that keeps the types of the function."""

    __slots__ = ("_database",)

    def __init__(self, database: Any) -> None:
        self._database = database

    @overload
    def __call__(
        self, fn: Callable[Concatenate[StepContext, C, P], Coroutine[Any, Any, R]], /
    ) -> Callable[Concatenate[StepContext, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], /
    ) -> Callable[Concatenate[StepContext, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[SyncStepContext, C, P], R], /
    ) -> Callable[Concatenate[SyncStepContext, P], R]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[C, P], R], /
    ) -> Callable[Concatenate[SyncStepContext, P], R]: ...
    def __call__(self, fn: Any, /) -> Any:
        return _step_function(self._database, fn)


class TransactionDecorator:
    """What `@app.transaction(db)` returns; it keeps the types of the function that it decorates."""

    __slots__ = ("_database", "_make_step")

    def __init__(self, database: Any, make_step: Callable[..., Any]) -> None:
        self._database = database
        self._make_step = make_step

    @overload
    def __call__(
        self, fn: Callable[Concatenate[StepContext, C, P], Coroutine[Any, Any, R]], /
    ) -> Step[P, R]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], /
    ) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[SyncStepContext, C, P], R], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[C, P], R], /) -> Step[P, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        return self._make_step(_step_function(self._database, fn))


def transaction(database: Any) -> InTransaction:
    """Make the function of a step from one that works in a transaction of your own database.

    The function takes a connection first, after the context if it wants one; the step takes the
    parameters after these. `@app.transaction(db)` makes and registers such a step; this one is for
    a compensation, under `@charge.compensate`.

    Args:
        database: A URL (`sqlite:///file.db`, `postgresql://…`), a pool of psycopg, an engine or
            session maker of SQLAlchemy, or a function that connects.

    Raises:
        DefinitionError: When it is applied: the function cannot use this database.
    """
    return InTransaction(database)


def _step_function(database: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    what = f"transaction {getattr(fn, '__name__', fn)!r}"
    check_function(fn, what)
    check_database(database, what, is_async=is_async(fn))
    context, rest = _split(fn, what)
    work = _Work(database, fn, what, takes_context=context is not None)

    async def awaited(ctx: AnyStepContext, *args: Any, **kwargs: Any) -> Any:
        return await _apart(work.perform(ctx, args, kwargs))

    def called(ctx: AnyStepContext, *args: Any, **kwargs: Any) -> Any:
        return _at_once(work.perform(ctx, args, kwargs))

    made: Any = update_wrapper(awaited if is_async(fn) else called, fn)
    first = context or inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    made.__signature__ = inspect.Signature([first, *rest])
    work.read_types(made)
    return made


def _split(
    fn: Callable[..., Any], what: str
) -> tuple[inspect.Parameter | None, list[inspect.Parameter]]:
    """Return the context, if the function takes one, and the parameters after the connection."""
    found = list(inspect.signature(fn).parameters.values())
    context = found.pop(0) if found and _is_context(found[0]) else None
    if not found or found[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise DefinitionError(f"{what} must take a connection first, or after its context")
    return context, found[1:]


def _is_context(parameter: inspect.Parameter) -> bool:
    declared = parameter.annotation
    if declared in (inspect.Parameter.empty, Any):
        return parameter.name in ("ctx", "context")
    name = declared if isinstance(declared, str) else getattr(declared, "__name__", "")
    return name.rpartition(".")[2].endswith("StepContext")


class _Row(Struct, frozen=True, kw_only=True):
    """The row of a step."""

    key: str
    job_id: str
    step: str
    input: str  # a digest of the arguments
    at: float

    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


class _Work:
    """The function of one transaction, and what is known about it."""

    def __init__(
        self, database: Any, fn: Callable[..., Any], what: str, *, takes_context: bool
    ) -> None:
        self._database = database
        self._fn = fn
        self._what = what
        self._takes_context = takes_context
        self._is_async = is_async(fn)

    def read_types(self, made: Callable[..., Any]) -> None:
        """Read the types of parameters and result, as they are read for any step."""
        self._parameters = parameters_of(made, self._what, context=0)
        self._result: Codec[Any] = Codec(
            result_type(made, self._what), f"the result of {self._what}"
        )
        # A compensation takes the output of its step last.
        taken = [each.type for each in self._parameters.all if each.by_position] or [Any]
        self._output: Codec[Any] = Codec(taken[-1], f"the output for {self._what}")

    async def perform(
        self, ctx: AnyStepContext, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Do the work in a transaction, unless it was done; repeat it if others got in its way."""
        for left in reversed(range(_TRIES)):
            try:
                return await self._once(ctx, args, kwargs)
            except Exception as error:
                if lacks_table(error, TABLE):
                    await _create_table(self._database, is_async=self._is_async)
                elif not (is_repeatable(error) and left):
                    raise
        raise Permanent(f"{self._what}: the table {TABLE} cannot be created")

    async def _once(
        self, ctx: AnyStepContext, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        database, what, progress = self._database, self._what, progress_of(ctx)
        async with opened(database, what, is_async=self._is_async) as connection:
            async with in_transaction(connection) as own:
                if progress.undoes and args[-1] is None:
                    args = (*args[:-1], await self._committed(progress, own))
                row = self._row(progress, args, kwargs)
                if not await own.change(_CLAIM, row.values()):
                    return await self._recorded(row, own)
                value = await done(self._call(ctx, connection, args, kwargs))
                result = self._encode(value, progress.limits)
                if not own.is_open():
                    raise Permanent(
                        f"{what} has ended its transaction itself, so that its result cannot be "
                        "recorded with it: leave commit and rollback to the step"
                    )
                if ctx.cancelled.is_set():  # the attempt is over: another one may have begun
                    raise Unwound
                await own.change(_RECORD, {"key": row.key, "result": result})
                _reach("before_transaction_commit")
            _reach("after_transaction_commit")
        return value

    def _row(self, progress: StepProgress, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Row:
        # What a compensation is called with belongs to the step that it undoes.
        packed = b"" if progress.undoes else self._parameters.pack(args, kwargs, progress.limits)
        return _row_of(progress, progress.step_id, digest(packed))

    async def _recorded(self, row: _Row, own: UserTransaction) -> Any:
        """Return the result of an attempt that has committed.

        Raises:
            Drift: It was called with other arguments.
            Permanent: It has no result.
        """
        packed, result = await _found(row, own)
        if result is None:
            raise Permanent(
                f"{row.step} cannot be done: it was undone before, or its function has ended its "
                "transaction itself"
            )
        if packed != row.input:
            raise Drift(
                f"{row.step} has committed its transaction with other arguments than those of "
                "this call: the code of the job is not deterministic"
            )
        return self._result.decode(result.encode())

    async def _committed(self, progress: StepProgress, own: UserTransaction) -> Any:
        """Return what the step that is undone has committed; None: nothing, and it never will."""
        row = _row_of(progress, progress.undoes, "")
        if await own.change(_CLAIM, row.values()):
            return None
        _, result = await _found(row, own)
        return None if result is None else self._output.decode(result.encode())

    def _call(
        self, ctx: AnyStepContext, connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        first = (_without_checkpoints(ctx),) if self._takes_context else ()
        return self._fn(*first, connection, *args, **kwargs)

    def _encode(self, value: Any, limits: PayloadLimits) -> str:
        if type(value) is Partial:
            raise DefinitionError(f"{self._what} cannot return a Partial: it is done as a whole")
        return self._result.encode(value, limits).decode()


def _row_of(progress: StepProgress, step: str, packed: str) -> _Row:
    key, now = progress.key_for(step), _CLOCK.time()
    return _Row(key=key, job_id=progress.job_id, step=step, input=packed, at=now)


async def _found(row: _Row, own: UserTransaction) -> tuple[str, str | None]:
    found = await own.rows(_FIND, {"key": row.key})
    if not found:
        raise RuntimeError(f"the row of {row.step} in {TABLE} was deleted at this moment")
    packed, result = found[0]
    return packed, result


def _reach(point: str) -> None:
    if crashpoint.wanted:
        crashpoint.reach(point)


# The context


def _without_checkpoints(ctx: AnyStepContext) -> AnyStepContext:
    """Return the context for the function: what a rollback undoes must not be skipped later."""
    port = cast("StepPort", _PortOfTransaction(port_of(ctx)))
    return type(ctx)(port, progress_of(ctx))


class _PortOfTransaction:
    """The port of a step, without checkpoints."""

    def __init__(self, port: StepPort) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def save_checkpoint(self, data: bytes) -> bool:  # noqa: ARG002  as in `StepPort`
        raise DefinitionError(
            "a transaction has no checkpoints: what it did before one is rolled back if it does "
            "not end. Use a step for each part"
        )


# Where it runs


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, in a thread without a loop."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    work.close()
    raise RuntimeError("a sync transaction has awaited something")


_APART: Final[set["asyncio.Task[Any]"]] = set()


async def _apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a task that is cancelled once if the attempt is interrupted.

    A killed process is interrupted again every few milliseconds. A driver that is interrupted in
    the middle of its rollback would leave a broken connection, or never return it to its pool.
    """
    variables = copy_context()
    variables.run(set_process, None)  # so that the task does not end with the process
    task = asyncio.get_running_loop().create_task(work, context=variables)
    _APART.add(task)  # the loop itself does not keep it alive
    task.add_done_callback(_ended_apart)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise


def _ended_apart(task: "asyncio.Task[Any]") -> None:
    _APART.discard(task)
    if not task.cancelled():
        task.exception()  # the attempt may be gone: then nobody else asks for it


# The table


async def _create_table(database: Any, *, is_async: bool) -> None:
    async with opened(database, f"the table {TABLE}", is_async=is_async) as connection:
        try:
            async with in_transaction(connection) as own:
                await own.change(_CREATE, {})
        except Exception as error:
            if not exists_already(error):
                raise


async def prune(
    database: Any, over: Callable[[Sequence[str]], Awaitable[set[str]]], before: float
) -> int:
    """Delete the rows of jobs that are over; return how many.

    Args:
        database: As for `transaction`.
        over: Returns which of some jobs can never run again, or are not there any more.
        before: Only rows that were written before this time, as UNIX seconds.
    """
    table = _Table(database, is_async=is_async_database(database))
    found = [job_id for (job_id,) in await table.run(_OLD_JOBS, [{"before": before}])]
    gone = [{"job_id": job_id, "before": before} for job_id in sorted(await over(found))]
    return sum(await table.run(_FORGET, gone))


class _Table:
    """The table, outside of steps: a sync database is used in a thread."""

    def __init__(self, database: Any, *, is_async: bool) -> None:
        self._database = database
        self._is_async = is_async

    async def run(self, statement: Statement, given: Sequence[dict[str, Any]]) -> list[Any]:
        if self._is_async:
            return await self._run(statement, given)
        return await call_in_thread(lambda: _at_once(self._run(statement, given)))

    async def _run(self, statement: Statement, given: Sequence[dict[str, Any]]) -> list[Any]:
        what = f"the table {TABLE}"
        async with opened(self._database, what, is_async=self._is_async) as connection:
            try:
                async with in_transaction(connection) as own:
                    if statement is _OLD_JOBS:
                        return await own.rows(statement, given[0])
                    return [await own.change(statement, values) for values in given]
            except Exception as error:
                if lacks_table(error, TABLE):
                    return []
                raise
