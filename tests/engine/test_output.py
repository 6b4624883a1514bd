"""Live output: emitted by jobs and steps of every kind, followed by readers who may come late."""

import asyncio
import threading
from typing import Any

import pytest

import perdure
from perdure.app import App
from perdure.base import telemetry
from perdure.base.errors import ArgumentError, JobNotFound, Unstorable
from perdure.base.retry import Retry
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.jobs.output import OutputPiece
from perdure.jobs.state import JobState
from perdure.store.db_thread import BATCH
from tests.support import output_steps
from tests.support.engine import QUICK, durable, job_of, nodes
from tests.support.telemetry import Recorder

WORDS = ["to", "be", "or", "not"]
TWICE = Retry(attempts=2, initial_delay="1ms")


async def pieces(handle: Handle[Any], topic: str = "output", after: int = 0) -> list[OutputPiece]:
    async with asyncio.timeout(10):
        return [piece async for piece in handle.stream(topic, after=after)]


async def values(handle: Handle[Any], topic: str = "output", after: int = 0) -> list[Any]:
    """Return what a reader has who discards what is void."""
    kept: list[OutputPiece] = []
    for piece in await pieces(handle, topic, after):
        if piece.kind == "reset":
            assert piece.discards is not None
            kept = [
                each for each in kept if each.step != piece.step or each.position < piece.discards
            ]
        else:
            kept.append(piece)
    return [each.value if each.kind == "value" else each.kind for each in kept]


@durable
async def test_pieces_are_read_while_the_step_runs(app: App) -> None:
    heard = asyncio.Event()

    @app.step
    async def say(ctx: StepContext) -> str:
        for word in WORDS[:2]:
            ctx.emit(word, topic="tokens")
        await heard.wait()
        ctx.emit({"end": 1}, topic="tokens")
        return "said"

    async with app.running():
        handle = await app.submit(job_of(app, say)())
        found: list[Any] = []
        async for piece in handle.stream("tokens"):
            found.append(piece.value)
            assert (piece.step, piece.attempt, piece.topic) == ("say#1", 1, "tokens")
            if len(found) == 2:
                heard.set()
        assert found == ["to", "be", {"end": 1}]
        assert await handle.status() is JobState.COMPLETED
    (topic,) = await handle.topics()
    assert (topic.topic, topic.pieces, topic.dropped) == ("tokens", 3, 0)


@durable
async def test_a_reader_goes_on_after_the_last_position_that_it_has_seen(app: App) -> None:
    @app.step
    async def say(ctx: StepContext, word: str) -> None:
        ctx.emit(word)

    @app.job
    async def job(ctx: JobContext) -> None:
        ctx.emit("first")
        for word in WORDS:
            await say(word)
        ctx.emit("last")

    async with app.running():
        handle = await app.submit(job())
        every = await pieces(handle)
    assert [each.value for each in every] == ["first", *WORDS, "last"]
    assert [each.position for each in every] == sorted({each.position for each in every})
    for seen in every:
        rest = [each for each in every if each.position > seen.position]
        assert await pieces(handle, after=seen.position) == rest
    assert [each.step for each in every[:2]] == ["", "say#1"]


@durable
async def test_threads_and_processes_emit_too(app: App) -> None:
    @app.step(isolation="thread")
    def shout(ctx: SyncStepContext) -> None:
        for word in WORDS:
            ctx.emit(word)

    @app.step(isolation="thread")
    async def sing(ctx: StepContext) -> None:
        for word in WORDS:
            ctx.emit(word)
            await asyncio.sleep(0)

    app.include(output_steps.steps)

    @app.job
    async def job(ctx: JobContext) -> int:
        await shout()
        await sing()
        told = await output_steps.tell(WORDS)
        return told + await output_steps.tell_sync(WORDS)

    async with app.running():
        handle = await app.submit(job())
        assert await handle.result("20s") == 8
    assert await values(handle) == WORDS * 4
    (reset,) = [each for each in await pieces(handle) if each.kind == "reset"]
    assert (reset.step.rpartition(".")[2], reset.attempt) == ("tell#1", 2)


@durable
async def test_what_a_failed_attempt_emitted_is_taken_back(app: App) -> None:
    read = asyncio.Event()

    @app.step(retry=TWICE)
    async def say(ctx: StepContext) -> None:
        for word in WORDS:
            ctx.emit(f"{word} {ctx.attempt}")
        if ctx.attempt == 1:
            await read.wait()
            raise RuntimeError("again")

    async with app.running():
        handle = await app.submit(job_of(app, say)())
        kinds: list[str] = []
        async for piece in handle.stream():
            kinds.append(piece.kind)
            if len(kinds) == 4:
                read.set()
        assert kinds == ["value"] * 4 + ["reset"] + ["value"] * 4
    # Who comes later sees what counts, and nothing of what does not.
    assert await values(handle) == ["to 2", "be 2", "or 2", "not 2"]
    assert [each.attempt for each in await pieces(handle)] == [2] * 5


@durable
async def test_what_was_emitted_before_a_checkpoint_stays(app: App) -> None:
    @app.step(retry=TWICE)
    async def say(ctx: StepContext) -> None:
        for number in range(ctx.load_checkpoint() or 0, 4):
            ctx.emit(WORDS[number])
            if ctx.attempt == 1 and number == 2:
                raise RuntimeError("in the middle")
            await ctx.save_checkpoint(number + 1)

    async with app.running():
        handle = await app.submit(job_of(app, say)())
        await handle.result("10s")
    assert await values(handle) == WORDS


@durable
async def test_a_job_that_replays_does_not_emit_twice(app: App) -> None:
    @app.step
    async def one(ctx: StepContext, number: int) -> int:
        ctx.emit(f"step {number}")
        return number

    @app.job
    async def job(ctx: JobContext) -> None:
        for number in range(3):
            ctx.emit(f"job {number}")
            await one(number)
            await ctx.receive(f"go {number}")

    async with app.running():
        handle = await app.submit(job())
        for number in range(3):
            await handle.until(JobState.WAITING)
            await handle.send(f"go {number}")
        await handle.result("10s")
    # A message may come before the job has asked for it, but the first one ended a wait.
    assert [event.type for event in await handle.events()].count("claimed") >= 2
    told = [f"{what} {number}" for number in range(3) for what in ("job", "step")]
    assert [each.value for each in await pieces(handle)] == told


@durable
async def test_a_worker_that_dies_leaves_what_it_wrote_and_the_next_one_takes_it_back(
    app: App,
) -> None:
    died = asyncio.Event()

    @app.step
    async def say(ctx: StepContext) -> None:
        ctx.emit("one")
        if not died.is_set():
            await asyncio.Event().wait()
        ctx.emit("two")

    handle = await app.submit(job_of(app, say)())
    async with app.running():
        async for piece in handle.stream():
            assert piece.value == "one"
            break
        # It loses its lease without a word, as with kill -9.
        (node,) = nodes(app)
        died.set()
        await (await app.store()).reap(0, [node.owner])
        assert await handle.until(JobState.COMPLETED, timeout="10s") is JobState.COMPLETED
    first, *rest = await pieces(handle)
    assert (first.kind, first.discards) == ("reset", 1)
    assert [each.value for each in rest] == ["one", "two"]


@durable
async def test_a_step_that_is_cancelled_keeps_what_it_emitted(app: App) -> None:
    @app.step
    async def say(ctx: StepContext) -> None:
        ctx.emit("so far")
        await asyncio.Event().wait()

    async with app.running():
        handle = await app.submit(job_of(app, say)())
        async for _ in handle.stream():
            await handle.cancel()
        assert await handle.wait("10s") is JobState.CANCELLED
    assert await values(handle) == ["so far"]


def limited(url: str, **settings: Any) -> App:
    given = {name: getattr(QUICK, name) for name in QUICK.__slots__} | settings
    return App(url, worker=WorkerSettings(**given))


def test_a_topic_that_grows_too_large_loses_its_oldest_pieces_visibly(url: str) -> None:
    async def main() -> None:
        app = limited(url, output_pieces=50)

        @app.step
        async def count(ctx: StepContext) -> None:
            for number in range(1, 1001):  # in one go: most of them never reach the store
                ctx.emit(number, topic="numbers")
            ctx.emit("small", topic="other")

        handle = await app.submit(job_of(app, count)())
        async with app.running():
            await handle.result("10s")
        first, *rest = await pieces(handle, "numbers")
        assert (first.kind, first.position) == ("dropped", 950)
        assert [each.value for each in rest] == list(range(951, 1001))
        assert await pieces(handle, "numbers", after=950) == rest
        assert await values(handle, "other") == ["small"]
        await app.close()

    perdure.run(main)


@durable
async def test_a_stream_of_tokens_is_written_in_batches(app: App) -> None:
    @app.step
    async def say(ctx: StepContext) -> None:
        for number in range(1000):
            ctx.emit(f"token {number}")
            await asyncio.sleep(0)

    heard = Recorder()
    telemetry.attach_many("batches", [BATCH], heard)
    try:
        async with app.running():
            handle = await app.submit(job_of(app, say)())
            await handle.result("10s")
    finally:
        telemetry.detach("batches")
    writes = [each for each in heard.seen if each[2]["thread"] == "perdure-writer"]
    assert len(writes) < 200
    assert len(await pieces(handle)) == 1000


@durable
async def test_a_thread_that_outlives_its_attempt_emits_nothing(app: App) -> None:
    goes_on, ended = threading.Event(), threading.Event()

    @app.step(isolation="thread", timeout="1s", retry=TWICE)
    def say(ctx: SyncStepContext) -> None:
        if ctx.attempt == 1:
            goes_on.wait()
            ctx.emit("too late")
            ended.set()
        else:
            ctx.emit("in time")
            goes_on.set()
            ended.wait()

    async with app.running():
        handle = await app.submit(job_of(app, say)())
        await handle.wait("10s")
    goes_on.set()
    assert await values(handle) == ["in time"]


@durable
async def test_what_cannot_be_emitted_is_refused_where_it_is_emitted(app: App) -> None:
    @app.step
    async def say(ctx: StepContext) -> list[str]:
        refused: list[str] = []
        for value, topic in ((object(), "t"), (1, ""), (1, "x" * 201)):
            try:
                ctx.emit(value, topic=topic)
            except (Unstorable, ArgumentError) as error:
                refused.append(type(error).__name__)
        return refused

    @app.step(retry=Retry(attempts=1))
    async def many(ctx: StepContext) -> None:
        for number in range(101):
            ctx.emit(1, topic=str(number))

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        refused = await say()
        try:
            await many()
        except perdure.errors.StepFailed as error:
            refused.append(str(error))
        return refused

    async with app.running():
        handle = await app.submit(job())
        *types, topics = await handle.result("10s")
    assert types == ["Unstorable", "ArgumentError", "ArgumentError"]
    assert "more than the 100 that a job may have" in topics


@durable
async def test_the_stream_of_a_job_that_is_not_there_says_so(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None: ...

    async with app.running():
        handle = await app.submit(job())
        assert await pieces(handle, "silence") == []
    store = await app.store()
    await store.prune(await store.now() + 1, 10)
    with pytest.raises(JobNotFound):
        await pieces(handle)


@durable
async def test_a_fork_has_the_output_that_it_emits_itself(app: App) -> None:
    @app.step
    async def say(ctx: StepContext, word: str) -> None:
        ctx.emit(word)

    @app.job
    async def job(ctx: JobContext) -> None:
        ctx.emit("begin")
        await say("one")
        await say("two")

    async with app.running():
        handle = await app.submit(job())
        await handle.result("10s")
        fork = await handle.fork("say#2")
        await fork.result("10s")
    assert await values(handle) == ["begin", "one", "two"]
    assert await values(fork) == ["begin", "two"]


def test_plain_code_follows_a_job_too(url: str) -> None:
    app = App(url, worker=QUICK)

    @app.step
    async def say(ctx: StepContext) -> None:
        for word in WORDS:
            ctx.emit(word)

    async def main() -> Handle[Any]:
        async with app.running():
            handle = await app.submit(job_of(app, say)())
            await handle.wait("10s")
        return handle

    id = perdure.run(main).id
    handle = app.sync.handle(id)
    assert [piece.value for piece in handle.stream()] == WORDS
    assert [piece.value for piece in handle.stream(after=2)] == WORDS[2:]
    for piece in handle.stream():  # which is left early
        assert piece.value == "to"
        break
    assert [topic.topic for topic in handle.topics()] == ["output"]
    app.sync.close()


@durable
async def test_a_job_that_continues_as_itself_emits_on(app: App) -> None:
    failed: list[int] = []

    @app.step(retry=TWICE)
    async def say(ctx: StepContext, number: int) -> None:
        ctx.emit(f"step {number}")
        if number == 1 and not failed:
            failed.append(number)
            raise RuntimeError("again")

    @app.job
    async def job(ctx: JobContext, number: int) -> None:
        ctx.emit(f"job {number}")
        await say(number)
        if number < 2:
            await ctx.continue_as(job(number + 1))

    async with app.running():
        handle = await app.submit(job(0))
        await handle.result("10s")
    told = [f"{what} {number}" for number in range(3) for what in ("job", "step")]
    assert await values(handle) == told
