"""Large arguments and results: kept as digests, kept elsewhere, loaded when the code needs them."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

import perdure
from perdure import PayloadLimits, Retry
from perdure.app import App
from perdure.base.errors import Permanent
from perdure.engine import events
from perdure.engine.handle import Handle
from perdure.engine.journal.run import Journal
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.jobs.model import EntryKind, JournalEntry
from perdure.jobs.parameters import Parameters
from perdure.jobs.payload import digested, stand_in_of
from perdure.jobs.state import JobState, StepState
from tests.engine.test_telemetry import listening
from tests.support import process_steps
from tests.support.engine import QUICK, durable, until
from tests.support.store import sql

ONCE = Retry(attempts=1)
LARGE = "history " * 5_000


@contextmanager
def logged() -> Generator[list[str]]:
    """Collect what the worker logs."""
    lines: list[str] = []
    handler, log = logging.Handler(), logging.getLogger("perdure.worker")
    handler.emit = lambda record: lines.append(record.getMessage())
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)


async def restarted(app: App, handle: Handle[Any], then: str = "go") -> Any:
    """Let a job that waits for a message continue with another worker; return its result."""
    async with app.running():
        await until(app, handle.id, JobState.WAITING)
    await handle.send(then)
    async with app.running():
        return await handle.result("20s")


@durable
async def test_large_arguments_are_kept_as_a_digest_and_a_preview(app: App) -> None:
    ran: list[int] = []

    @app.step
    async def think(ctx: StepContext, history: list[str]) -> int:
        ran.append(len(history))
        return len(history)

    @app.job
    async def job(ctx: JobContext) -> list[int]:
        small = await think(["a"])
        large = await think([LARGE, LARGE])
        await ctx.receive("go")
        return [small, large, await think([LARGE] * 3)]

    handle = await app.submit(job())
    assert await restarted(app, handle) == [1, 2, 3]
    assert ran == [1, 2, 3]
    first, second, *_ = await handle.journal()
    assert first.input == b'{"history":["a"]}'
    kept = stand_in_of(second.input)
    assert kept is not None
    assert not kept.chunks
    assert kept.preview.startswith('{"history":["history history')
    assert kept.size > 2 * len(LARGE)


@durable
async def test_other_large_arguments_than_before_are_a_drift(app: App) -> None:
    said = ["one"]

    @app.step
    async def think(ctx: StepContext, history: str) -> None: ...

    @app.job
    async def job(ctx: JobContext) -> None:
        await think(LARGE + said[0])
        await ctx.receive("go")

    handle = await app.submit(job())
    async with app.running():
        await until(app, handle.id, JobState.WAITING)
    said[0] = "two"
    await handle.send("go")
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
    failure = await handle.failure()
    assert failure is not None
    assert failure.type == "perdure.errors.Drift"
    assert "think#1 was called with other arguments before" in failure.message


def entry_of(seq: int, size: int, state: StepState = StepState.SUCCEEDED) -> JournalEntry:
    kept = digested(b"x" * size)
    kind = EntryKind.STEP
    return JournalEntry(seq=seq, id=f"s#{seq}", kind=kind, name="s", state=state, input=kept)


def test_a_replay_compares_the_newest_large_arguments_up_to_a_number_of_bytes() -> None:
    entries = [entry_of(seq, 100 * seq) for seq in range(1, 6)]
    assert Journal(entries, 10_000).trusted == set()
    assert Journal(entries, 900).trusted == {"s#1", "s#2", "s#3"}
    assert Journal(entries, 1).trusted == {"s#1", "s#2", "s#3", "s#4"}
    unfinished = [*entries, entry_of(6, 600, StepState.RUNNING)]
    assert "s#6" not in Journal(unfinished, 1).trusted


def test_a_replay_does_not_encode_what_it_does_not_compare(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        app = App(url, worker=QUICK, limits=PayloadLimits(compared=100_000))
        ran: list[int] = []

        @app.step
        async def think(ctx: StepContext, history: list[str]) -> str:
            ran.append(len(history))
            return LARGE[:4000]

        @app.job
        async def job(ctx: JobContext) -> int:
            history: list[str] = []
            for turn in range(20):
                history.append(await think(history))
                if turn == 17:
                    await ctx.receive("go")
            return len(history)

        handle = await app.submit(job())
        async with app.running():
            await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        packed: list[int] = []
        pack = Parameters.pack

        def counted(self: Parameters, args: Any, kwargs: Any, limits: Any) -> bytes:
            packed.append(len(args[0]))
            return pack(self, args, kwargs, limits)

        monkeypatch.setattr(Parameters, "pack", counted)
        async with app.running():
            assert await handle.result("20s") == 20
        assert ran == list(range(20))
        assert packed == [0, 1, 2, 3, 4, 17, 18, 19]
        await app.close()

    perdure.run(main)


@durable
async def test_a_large_result_is_stored_elsewhere_and_loaded_at_a_replay(app: App) -> None:
    ran: list[str] = []

    @app.step
    async def fetch(ctx: StepContext, name: str) -> dict[str, str]:
        ran.append(name)
        return {name: LARGE}

    @app.job
    async def job(ctx: JobContext) -> list[int]:
        one = await fetch("one")
        two, three = await ctx.gather(fetch("two"), fetch("three"))
        await ctx.receive("go")
        return [len(one["one"]), len(two["two"]), len(three["three"])]

    handle = await app.submit(job())
    assert await restarted(app, handle) == [len(LARGE)] * 3
    assert ran == ["one", "two", "three"]
    entries = await handle.journal()
    assert all(stand_in_of(entry.output) for entry in entries[:3])


@durable
async def test_a_large_result_that_nobody_awaits_at_a_replay_is_no_reason_to_warn(
    app: App,
) -> None:
    resumed: list[str] = []

    @app.job
    async def fetch() -> str:
        return LARGE

    @app.job
    async def job(ctx: JobContext) -> int:
        found = ctx.child(fetch())
        if not resumed:
            await found
        await ctx.receive("go")
        return 1

    handle = await app.submit(job())
    async with app.running():
        while "receive:go#1" not in [entry.id for entry in await handle.journal()]:
            await perdure.process.sleep("10ms")
    resumed.append("from here on, nobody awaits the child")
    with logged() as lines:
        assert await restarted(app, handle) == 1
    assert not [line for line in lines if "without awaiting" in line]


@durable
async def test_messages_and_results_of_children_may_be_large_too(app: App) -> None:
    @app.job
    async def child(ctx: JobContext) -> str:
        return LARGE

    @app.job
    async def job(ctx: JobContext) -> list[int]:
        made = await ctx.child(child())
        said = await ctx.receive("said")
        await ctx.receive("go")
        return [len(made), len(said)]

    handle = await app.submit(job())
    await handle.send("said", LARGE)
    assert await restarted(app, handle) == [len(LARGE)] * 2


def test_a_history_that_every_step_returns_is_stored_once(url: str) -> None:
    async def main() -> None:
        app = App(url, worker=QUICK)

        @app.step
        async def turn(ctx: StepContext, history: list[str]) -> list[str]:
            said = "".join(f"{len(history)} {number} " for number in range(400))
            return [*history, said[:4096]]

        @app.job
        async def job(ctx: JobContext) -> int:
            history: list[str] = []
            for _ in range(60):
                history = await turn(history)
            await ctx.receive("go")
            return len(history)

        handle = await app.submit(job())
        assert await restarted(app, handle) == 60
        await app.close()

    perdure.run(main)
    ((stored,),) = sql(url, "SELECT sum(length(data)) FROM payload")
    whole = 60 * 61 / 2 * 4096
    assert stored < whole / 8


@durable
async def test_what_an_undo_needs_is_kept_whole(app: App) -> None:
    undone: list[tuple[int, int]] = []

    @app.step(retry=ONCE)
    async def write(ctx: StepContext, text: str) -> str:
        return text[:-1]

    @write.compensate
    async def erase(ctx: StepContext, text: str, output: str | None) -> None:
        undone.append((len(text), len(output or "")))

    @app.step(retry=ONCE)
    async def fail(ctx: StepContext, text: str) -> None:
        raise Permanent("no")

    @app.job
    async def job(ctx: JobContext) -> None:
        await write(LARGE)
        await fail(LARGE)

    async with app.running():
        handle = await app.submit(job())
        assert await handle.wait("20s") is JobState.COMPENSATED
    assert undone == [(len(LARGE), len(LARGE) - 1)]
    first, second, *_ = await handle.journal()
    kept, digest_alone = stand_in_of(first.input), stand_in_of(second.input)
    assert kept is not None
    assert digest_alone is not None
    assert kept.chunks
    assert not digest_alone.chunks


@durable
async def test_a_step_in_an_os_process_gets_its_large_arguments(app: App) -> None:
    app.include(process_steps.steps)

    @app.job
    async def job(ctx: JobContext) -> object:
        return (await process_steps.who(LARGE))["word"]

    async with app.running():
        assert await (await app.submit(job())).result("30s") == LARGE


@durable
async def test_large_arguments_are_compared_where_a_key_shares_a_result(app: App) -> None:
    ran: list[str] = []

    def key_of(text: str) -> str:
        return f"the key of {len(text)}"

    @app.step(idempotency_key=key_of, retry=ONCE)
    async def convert(ctx: StepContext, text: str) -> str:
        ran.append(text[-1])
        return text

    @app.job
    async def job(ctx: JobContext, end: str) -> str:
        return (await convert(LARGE + end))[-1]

    async with app.running():
        assert await (await app.submit(job("a"))).result("20s") == "a"
        assert await (await app.submit(job("a"))).result("20s") == "a"
        other = await app.submit(job("b"))
        assert await other.wait("20s") is JobState.FAILED
    failure = await other.failure()
    assert failure is not None
    assert "other arguments" in failure.message
    assert ran == ["a"]


@durable
async def test_a_fork_has_the_large_results_of_its_source(app: App) -> None:
    ran: list[str] = []

    @app.step
    async def fetch(ctx: StepContext, name: str) -> str:
        ran.append(name)
        return LARGE

    @app.job
    async def job(ctx: JobContext) -> int:
        return len(await fetch("a")) + len(await fetch("b"))

    async with app.running():
        handle = await app.submit(job())
        assert await handle.result("20s") == 2 * len(LARGE)
        fork = await handle.fork("fetch#2")
        assert await fork.result("20s") == 2 * len(LARGE)
    assert ran == ["a", "b", "b"]


# Limits of size


def limited(url: str, **limits: int) -> App:
    return App(url, worker=QUICK, limits=PayloadLimits(**limits))


def parked(url: str, kind: str, **limits: int) -> None:
    """Run a job into a limit, with something that could be undone; then raise the limit."""

    async def main() -> None:
        undone: list[str] = []
        for app, expected in (
            (limited(url, **limits), JobState.NEEDS_ATTENTION),
            (limited(url), JobState.COMPLETED),
        ):
            handle = await run_into_limit(app, kind, undone)
            async with app.running():
                if expected is JobState.COMPLETED:
                    await handle.resume()
                assert await handle.until(JobState.NEEDS_ATTENTION, timeout="20s") is expected
            if expected is JobState.NEEDS_ATTENTION:
                failure = await handle.failure()
                assert failure is not None
                assert failure.type == "perdure.errors.PayloadTooLarge"
                assert "or raise the limit. Nothing is lost or undone" in failure.message
                job = await handle.job()
                assert job.state is JobState.NEEDS_ATTENTION
            await app.close()
        assert undone == []

    perdure.run(main)


async def run_into_limit(  # noqa: C901  one job for all limits
    app: App, kind: str, undone: list[str]
) -> Handle[Any]:
    @app.step(retry=ONCE)
    async def pay(ctx: StepContext) -> str:
        return "paid"

    @pay.compensate
    async def refund(ctx: StepContext, output: str | None) -> None:
        undone.append("refund")

    @app.step
    async def take(ctx: StepContext, text: str) -> int:
        return len(text)

    @app.step
    async def give(ctx: StepContext) -> str:
        if kind == "checkpoint":
            await ctx.save_checkpoint(LARGE[:30_000])
        return LARGE

    @app.step(isolation="thread")
    def give_in_thread(ctx: SyncStepContext) -> str:
        return LARGE

    @app.job
    async def other(ctx: JobContext, text: str) -> int:
        return len(text)

    @app.job
    async def job(ctx: JobContext) -> str:
        await pay()
        if kind == "argument":
            try:
                await take(LARGE)
            except Exception:  # noqa: BLE001  no code of a job mistakes a limit for a failure
                return "caught"
        if kind == "child":
            await ctx.child(other(LARGE))
        if kind in ("result", "checkpoint"):
            await give()
        if kind == "thread":
            await give_in_thread()
        return LARGE if kind == "job" else "done"

    return await app.submit(job(), key="one")


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        ("argument", {"argument": 20_000}),
        ("child", {"record": 20_000}),
        ("result", {"result": 20_000}),
        ("thread", {"result": 20_000}),
        ("checkpoint", {"checkpoint": 20_000}),
        ("job", {"record": 20_000}),
    ],
)
def test_at_a_limit_of_size_the_job_is_parked_and_continues_when_the_limit_is_raised(
    url: str, kind: str, limits: dict[str, int]
) -> None:
    parked(url, kind, **limits)


@durable
async def test_an_effect_whose_result_is_too_large_parks_its_job(app: App) -> None:
    app.limits = PayloadLimits(record=20_000)
    called: list[str] = []

    @app.step(retry=ONCE)
    async def fetch(ctx: StepContext) -> int:
        return len(await ctx.effect("get", lambda key: called.append(key) or LARGE, target="x"))

    @app.job
    async def job(ctx: JobContext) -> int:
        return await fetch()

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
    assert len(called) == 1


@durable
async def test_large_results_and_checkpoints_are_told_and_logged_once_for_a_step(
    app: App,
) -> None:
    @app.step
    async def give(ctx: StepContext, size: int) -> str:
        await ctx.save_checkpoint("c" * size)
        return "r" * size

    @app.job
    async def job(ctx: JobContext) -> None:
        for size in (9_000, 12_000, 13_000):
            await give(size)

    with listening(events.PAYLOAD_LARGE) as heard, logged() as lines:
        async with app.running():
            await (await app.submit(job())).result("20s")
    found = [(told["what"], measured["bytes"]) for measured, told in heard.of("payload", "large")]
    assert found == [
        ("checkpoint", 12_002),
        ("result", 12_002),
        ("checkpoint", 13_002),
        ("result", 13_002),
    ]
    warned = [line for line in lines if "Store large data elsewhere" in line]
    assert len(warned) == 2
    assert "the checkpoint of give#2 has 12,002 bytes" in warned[0]


# Any text

ODD = "a\0b \ud800 \\u0000 \U0001f600 \udfff"


@durable
async def test_nul_characters_and_lone_surrogates_survive_everywhere(app: App) -> None:
    seen: list[Any] = []

    @app.step
    async def echo(ctx: StepContext, value: dict[str, str]) -> dict[str, str]:
        seen.append(ctx.load_checkpoint())
        if ctx.load_checkpoint() is None:
            await ctx.save_checkpoint([ODD])
            raise RuntimeError(ODD)
        seen.append(
            await ctx.effect("call", lambda key: {ODD: ODD}, target="x", details={"text": ODD})
        )
        return value

    @app.job
    async def child(ctx: JobContext, value: str) -> str:
        return value

    @app.job
    async def job(ctx: JobContext, value: str) -> list[Any]:
        one = await echo({value: value})
        two = await ctx.child(child(value))
        three = await ctx.receive("said")
        await ctx.receive("go")
        return [one, two, three, value]

    handle = await app.submit(job(ODD), key="odd")
    again = await app.submit(job(ODD), key="odd")
    assert again.id == handle.id
    await handle.send("said", [ODD])
    assert await restarted(app, handle) == [{ODD: ODD}, ODD, [ODD], ODD]
    assert seen == [None, [ODD], {ODD: ODD}]


@durable
async def test_large_payloads_may_have_any_text_too(app: App) -> None:
    @app.step
    async def echo(ctx: StepContext, value: list[str]) -> list[str]:
        return value

    @app.job
    async def job(ctx: JobContext) -> bool:
        given = [ODD] * 3000
        found = await echo(given)
        await ctx.receive("go")
        return found == given

    handle = await app.submit(job())
    assert await restarted(app, handle) is True


@durable
async def test_the_journal_shows_large_payloads_as_digest_and_preview(app: App) -> None:
    @app.step
    async def echo(ctx: StepContext, value: str) -> str:
        return value

    @app.job
    async def job(ctx: JobContext) -> int:
        return len(await echo(LARGE))

    async with app.running():
        handle = await app.submit(job())
        await handle.result("20s")
    (entry,) = await handle.journal()
    for payload in (entry.input, entry.output):
        shown = msgspec.json.decode(payload or b"")
        assert {"digest", "bytes", "preview"} <= shown.keys()
    assert await handle.output("echo#1") == LARGE
    with pytest.raises(LookupError, match="echo#2"):
        await handle.output("echo#2")
