"""Effects: written down before they are made, made once, and never guessed about."""

import asyncio
import threading
from functools import partial
from typing import Any, cast

import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import JobFailed, Refused
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import DidNotHappen, EffectState, Happened, Unknown
from perdure.jobs.state import JobState
from tests.support.engine import durable, job_of, until

QUICK = Retry(attempts=5, initial_delay="1ms", jitter=0)


def _append(sent: list[str], to: str, _: str) -> None:
    sent.append(to)


@durable
async def test_an_effect_gives_what_its_call_gave_and_is_in_the_ledger(app: App) -> None:
    keys: list[str] = []

    async def charge(key: str) -> dict[str, int]:
        keys.append(key)
        (line,) = await (await app.store()).effects(handle.id)
        assert (line.key, line.state) == (key, EffectState.INTENT)  # durable before the call
        return {"id": 7}

    @app.step
    async def pay(ctx: StepContext) -> int:
        details = {"amount": 5, "password": "x"}
        got = await ctx.effect("payment", charge, target="card 1", details=details)
        return int(cast("Any", got)["id"])

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        assert await handle.result("5s") == 7
    (line,) = await handle.effects()
    assert (line.state, line.result, line.proof) == (EffectState.DONE, b'{"id":7}', "answer")
    assert (line.place.step, line.kind, line.target) == ("pay#1", "payment", "card 1")
    assert b"[removed]" in (line.details or b"")
    assert keys == [line.key]


@durable
async def test_what_is_done_is_not_done_again_by_the_next_attempt(app: App) -> None:
    calls: list[str] = []

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> list[str]:
        first = await ctx.effect("payment", calls.append, target="a")
        assert first is None
        second = await ctx.effect("payment", lambda key: f"b {len(calls)}", target="b")
        if ctx.attempt < 3:
            raise RuntimeError("after the effects")
        return [second, str(ctx.attempt)]

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        assert await handle.result("5s") == ["b 1", "3"]
    assert len(calls) == 1
    assert [line.no for line in await handle.effects()] == [1, 2]


@durable
async def test_a_refusal_is_proof_and_the_next_call_has_another_key(app: App) -> None:
    calls: list[str] = []

    async def charge(key: str) -> str:
        calls.append(key)
        if len(calls) < 3:
            raise Refused("card declined")
        return "paid"

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> str:
        return await ctx.effect("payment", charge, target="card")

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        assert await handle.result("5s") == "paid"
    lines = await handle.effects()
    assert [line.state for line in lines] == ["FAILED", "FAILED", "DONE"]
    assert [line.generation for line in lines] == [1, 2, 3]
    assert calls == [line.key for line in lines]
    assert len(set(calls)) == 3


@durable
async def test_a_receiver_that_honours_keys_is_called_again_with_the_same_one(app: App) -> None:
    calls: list[str] = []

    async def charge(key: str) -> str:
        calls.append(key)
        if len(calls) == 1:
            raise TimeoutError
        return "paid"

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> str:
        return await ctx.effect("payment", charge, target="card", in_doubt="replay")

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        assert await handle.result("5s") == "paid"
    assert len(calls) == 2
    assert len(set(calls)) == 1
    (line,) = await handle.effects()
    assert line.state is EffectState.DONE


async def _in_doubt(app: App, **options: Any) -> tuple[Any, list[str]]:
    """Run a job whose only effect ends in a time-out, until it waits for a person."""
    calls: list[str] = []

    async def charge(key: str) -> str:
        calls.append(key)
        if len(calls) == 1:
            raise TimeoutError("no answer")
        return "second"

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> str:
        try:
            return str(await ctx.effect("payment", charge, target="card", **options))
        except Exception:  # noqa: BLE001 - nobody may swallow the doubt
            return "swallowed"

    handle = await app.submit(job_of(app, pay)())
    return handle, calls


@durable
async def test_a_doubt_stops_the_job_until_a_person_says_that_it_happened(app: App) -> None:
    handle, calls = await _in_doubt(app)
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        job = await handle.job()
        assert b"did not happen" in (job.wait or b"")
        assert b"nobody knows whether the payment to card happened" in (job.error or b"")
        (line,) = await handle.effects()
        assert line.state is EffectState.IN_DOUBT
        await handle.resolve(line.no, "happened", result="ref-1", reason="bank", by="kim")
        assert await handle.result("5s") == "ref-1"
    assert len(calls) == 1
    assert (await handle.effects())[0].proof == "kim"


@durable
async def test_a_person_may_say_that_it_did_not_happen(app: App) -> None:
    handle, calls = await _in_doubt(app)
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.resolve(1, "did not happen", by="kim")
        assert await handle.result("5s") == "second"
    assert len(set(calls)) == 2
    assert [line.state for line in await handle.effects()] == ["FAILED", "DONE"]


@pytest.mark.parametrize("ends", ["timeout of the step", "timeout in the step", "declared error"])
def test_a_step_whose_last_attempt_is_interrupted_in_a_call_leaves_the_doubt_to_a_person(
    url: str, ends: str
) -> None:
    @durable
    async def test(app: App) -> None:
        calls: list[str] = []

        async def charge(key: str) -> str:
            calls.append(key)
            if len(calls) > 1:
                return "again"
            await asyncio.Event().wait()
            return "never"

        timeout = "1s" if ends == "timeout of the step" else None

        @app.step(retry=Retry(attempts=1), timeout=timeout, raises=(LookupError,))
        async def pay(ctx: StepContext) -> str:
            try:
                async with asyncio.timeout(0.05 if timeout is None else None):
                    return str(await ctx.effect("payment", charge, target="card"))
            except TimeoutError:
                raise (TimeoutError if ends == "timeout in the step" else LookupError) from None

        @app.job
        async def job() -> str:
            try:
                return await pay()
            except Exception as error:  # noqa: BLE001 - whatever it is, code might pay elsewhere
                return f"caught {error!r}"

        handle = await app.submit(job())
        async with app.running():
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
            (line,) = await handle.effects()
            assert line.state is EffectState.IN_DOUBT
            await handle.resolve(line.no, "happened", result="ref-1", by="kim")
            assert await handle.result("5s") == "ref-1"
        assert len(calls) == 1

    test(url)


@durable
async def test_a_query_finds_what_an_attempt_left(app: App) -> None:
    calls: list[str] = []
    asked: list[str] = []

    async def charge(key: str) -> str:
        calls.append(key)
        raise TimeoutError

    async def query(key: str) -> Happened:
        asked.append(key)
        return Happened({"id": 3})

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> int:
        got = await ctx.effect("payment", charge, target="card", query=query, settle_after=0)
        return int(cast("Any", got)["id"])

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        assert await handle.result("5s") == 3
    assert calls == asked
    assert len(calls) == 1
    assert (await handle.effects())[0].proof == "query"


@durable
async def test_after_the_life_of_a_key_nobody_calls_again(app: App) -> None:
    calls: list[str] = []

    async def charge(key: str) -> str:
        calls.append(key)
        raise TimeoutError

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> None:
        await ctx.effect("payment", charge, target="card", in_doubt="replay", key_ttl=0)

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
    assert len(calls) == 1
    assert b"forgotten the key" in ((await handle.job()).error or b"")


@durable
async def test_a_result_that_cannot_be_stored_never_repeats_the_effect(app: App) -> None:
    calls: list[str] = []

    def act(key: str) -> object:
        calls.append(key)
        return object()

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> None:
        await ctx.effect("payment", act, target="card")

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        with pytest.raises(JobFailed, match="happened and is not repeated"):
            await handle.result("5s")
    assert len(calls) == 1
    (line,) = await handle.effects()
    assert line.state is EffectState.DONE
    assert line.problem


@durable
async def test_a_business_key_is_one_effect_in_all_jobs_of_a_tenant(app: App) -> None:
    calls: list[str] = []

    def act(key: str) -> int:
        calls.append(key)
        return len(calls)

    @app.step
    async def greet(ctx: StepContext) -> int:
        return await ctx.effect("email", act, target="kim", key="welcome kim")

    job = job_of(app, greet)
    async with app.running():
        assert await (await app.submit(job())).result("5s") == 1
        assert await (await app.submit(job())).result("5s") == 1
        assert await (await app.submit(job(), tenant="other")).result("5s") == 2
    assert len(calls) == 2


@durable
async def test_a_query_that_says_no_lets_the_call_be_made_with_the_same_key(app: App) -> None:
    calls: list[str] = []

    async def charge(key: str) -> str:
        calls.append(key)
        if len(calls) == 1:
            raise TimeoutError
        return "second"

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> str:
        def ask(_: str) -> DidNotHappen:
            return DidNotHappen()

        return await ctx.effect("payment", charge, target="card", query=ask, settle_after=0)

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        assert await handle.result("5s") == "second"
    assert len(calls) == 2
    assert len(set(calls)) == 1


@durable
async def test_a_receiver_that_cannot_tell_leaves_it_to_a_person(app: App) -> None:
    async def charge(key: str) -> str:
        raise TimeoutError

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> None:
        def ask(_: str) -> Unknown:
            return Unknown()

        await ctx.effect("payment", charge, target="card", query=ask, settle_after=0)

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
    assert [line.state for line in await handle.effects()] == ["IN_DOUBT"]


@durable
async def test_items_and_what_stands_around_them_are_done_once(app: App) -> None:
    sent: list[str] = []

    def send(to: str) -> Any:
        return partial(_append, sent, to)

    @app.step(retry=QUICK)
    async def mail(ctx: StepContext) -> None:
        await ctx.effect("email", send("first"), target="kim")
        async for person in ctx.items(["a", "b", "c", "d"], every=2):
            await ctx.effect("email", send(person), target="kim")
            if person == "d" and ctx.attempt == 1:
                raise RuntimeError("in the middle")
        await ctx.effect("email", send("last"), target="kim")
        if ctx.attempt == 2:
            raise RuntimeError("at the end")

    handle = await app.submit(job_of(app, mail)())
    async with app.running():
        await handle.result("5s")
    assert sent == ["first", "a", "b", "c", "d", "last"]


@durable
async def test_effects_that_a_checkpoint_makes_alike_are_refused_at_once(app: App) -> None:
    @app.step(retry=QUICK)
    async def tell(ctx: StepContext) -> None:
        for number in range(ctx.load_checkpoint() or 0, 3):
            await ctx.effect("slack", lambda key: key, target="#ops")
            await ctx.save_checkpoint(number + 1)

    handle = await app.submit(job_of(app, tell)())
    async with app.running():
        with pytest.raises(JobFailed, match="target of its own"):
            await handle.result("5s")
    assert len(await handle.effects()) == 1


@durable
async def test_nothing_new_is_begun_while_an_earlier_call_is_open_behind_it(app: App) -> None:
    calls: list[str] = []

    async def act(key: str) -> None:
        calls.append(key)
        raise TimeoutError

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> None:
        await ctx.effect("payment", act, target=f"attempt {ctx.attempt}", in_doubt="replay")

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
    assert len(calls) == 1
    assert b"asks for a payment to attempt 2 instead" in ((await handle.job()).error or b"")


@durable
async def test_a_step_does_not_end_while_an_earlier_call_is_open_behind_it(app: App) -> None:
    async def act(_: str) -> None:
        raise TimeoutError

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> str:
        if ctx.attempt == 1:
            await ctx.effect("payment", act, target="kim", in_doubt="replay")
        return "done without it"

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        assert b"has not asked for it again" in ((await handle.job()).error or b"")
        (line,) = await handle.effects()
        assert line.state is EffectState.IN_DOUBT
        await handle.resolve(line.no, "did not happen", by="kim")
        assert await handle.result("5s") == "done without it"


@durable
async def test_a_step_that_goes_on_from_its_checkpoint_takes_no_effect_for_another(
    app: App,
) -> None:
    sent: list[int] = []

    @app.step(retry=QUICK)
    async def mail(ctx: StepContext) -> int:
        done = ctx.load_checkpoint() or 0
        for number in range(done, 6):
            await ctx.effect("email", lambda _, n=number: sent.append(n), target=str(number))
            if number == 4 and ctx.attempt == 1:
                raise RuntimeError("before its checkpoint")
            await ctx.save_checkpoint(number + 1)
        return len(sent)

    handle = await app.submit(job_of(app, mail)())
    async with app.running():
        assert await handle.result("5s") == 6
    assert sent == list(range(6))
    assert len(await handle.effects()) == 6


@durable
async def test_a_sync_step_makes_its_effects_in_its_own_thread(app: App) -> None:
    threads: list[str] = []

    def act(key: str) -> str:
        threads.append(threading.current_thread().name)
        return key

    @app.step(retry=QUICK)
    def pay(ctx: Any) -> str:
        got = ctx.effect("payment", act, target="card")
        if ctx.attempt == 1:
            raise RuntimeError("again")
        return got

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        got = await handle.result("5s")
    (line,) = await handle.effects()
    assert got == line.key
    assert len(threads) == 1
    assert threads[0].startswith("perdure-step")


@durable
async def test_what_was_recorded_by_hand_is_known_only_when_it_was_done(app: App) -> None:
    @app.step
    async def mail(ctx: StepContext) -> list[bool]:
        before = await ctx.was_effect_recorded("email", "kim")
        await ctx.record_effect("email", "kim", message_id="m1")
        await ctx.record_effect("email", "kim")
        return [before, await ctx.was_effect_recorded("email", "kim")]

    async with app.running():
        handle = await app.submit(job_of(app, mail)())
        assert await handle.result("5s") == [False, True]
        again = await app.submit(app.find_job("job")())
        assert await again.result("5s") == [True, True]
    assert len(await handle.effects()) == 1


@durable
async def test_parallel_effects_have_their_own_places(app: App) -> None:
    @app.step
    async def both(ctx: StepContext) -> list[str]:
        async def act(key: str) -> str:
            await asyncio.sleep(0)
            return key

        calls = [ctx.effect("x", act, target=str(n)) for n in range(5)]
        return list(await asyncio.gather(*reversed(calls)))

    handle = await app.submit(job_of(app, both)())
    async with app.running():
        keys = await handle.result("5s")
    assert {line.target: line.key for line in await handle.effects()} == {
        str(4 - n): key for n, key in enumerate(keys)
    }


@pytest.mark.parametrize("then", ["returns", "raises"])
def test_not_even_code_that_catches_everything_swallows_a_doubt(url: str, then: str) -> None:
    @durable
    async def case(app: App) -> None:
        async def charge(key: str) -> str:
            raise TimeoutError("no answer")

        @app.step(retry=Retry(attempts=1))
        async def pay(ctx: StepContext) -> str:
            try:
                return str(await ctx.effect("payment", charge, target="card"))
            except BaseException:  # noqa: BLE001 - it would
                if then == "raises":
                    raise ValueError("something else") from None
                return "swallowed"

        handle = await app.submit(job_of(app, pay)())
        async with app.running():
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
        assert b"nobody knows" in ((await handle.job()).error or b"")

    case(url)
