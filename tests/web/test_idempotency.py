"""A request with a key that is interrupted, or loses its key: what it changed happens once."""

import itertools
import signal
import subprocess
import sys
from collections import deque

import pytest

from perdure import App, Encryption
from perdure.base.encryption import generate_key
from perdure.base.errors import IllegalTransition
from perdure.jobs.model import JobQuery
from perdure.jobs.state import JobState
from perdure.store.verbs.answer import KeyedAnswer, RequestKey
from perdure.web.access.audit_trail import KeyedRequest
from perdure.web.access.principal import Role
from perdure.web.access.tenant import TenantHandle
from tests.support.tenants import of, preparer, seeded, tenant_app
from tests.web.access.test_audit import run_sql

ANN = of("acme", Role.OPERATOR)


async def taken(app: App, taker: str) -> tuple[KeyedAnswer, TenantHandle]:
    """Take the one key of these tests; return what is known of it, and a handle with the key."""
    key = RequestKey("acme", ANN.id, "key", taker)
    known = await app.verbs.begin_answer(key, "the same request")
    keyed = KeyedRequest(key, deque(known.done))
    return known, TenantHandle(app, ANN, prepare=preparer(app), keyed=keyed)


def grow_old(url: str) -> None:
    """Let the keys count as given up: their servers have died."""
    run_sql(url, "UPDATE answer SET at = at - 3600")


async def test_what_an_interrupted_request_has_changed_is_not_changed_again(url: str) -> None:
    app = tenant_app(url)
    async with app:
        mine = await seeded(app)
        job = mine["acme"].job
        _, first = await taken(app, "first")
        made = await first.submit("business", {"text": "x"})
        copy = await first.fork(job, "greet")
        await first.send(job, "note", "once")
        await first.command(job, "pause")
        grow_old(url)
        known, second = await taken(app, "second")
        assert (known.taker, len(known.done)) == ("second", 4)
        assert await second.submit("business", {"text": "x"}) == made
        assert await second.fork(job, "greet") == copy
        assert await second.send(job, "note", "once")
        await second.command(job, "pause")
        assert len(await second.jobs()) == 3
        assert len(await second.messages(job)) == 2  # one is of the seed
        assert len(await app.verbs.audit_rows("acme")) == 4


async def test_an_interrupted_request_goes_on_after_the_store_got_another_key(url: str) -> None:
    old, new = generate_key(), generate_key()
    made: list[str] = []
    for taker, keys in (("first", [old]), ("second", [new, old])):
        app = App(url, encryption=Encryption(keys))

        @app.job
        async def business(text: str) -> str:
            return text

        del business
        async with app:
            known, handle = await taken(app, taker)
            assert known.taker == taker
            made.append(await handle.submit("business", {"text": "x"}))
        grow_old(url)
    assert made[0] == made[1]


async def test_a_request_that_has_lost_its_key_changes_nothing_and_keeps_no_answer(
    url: str,
) -> None:
    app = tenant_app(url)
    async with app:
        _, first = await taken(app, "first")
        grow_old(url)
        _, second = await taken(app, "second")
        made = await second.submit("business", {"text": "x"})
        await app.verbs.keep_answer(RequestKey("acme", ANN.id, "key", "second"), 201, made)
        with pytest.raises(IllegalTransition, match="taken over"):
            await first.submit("business", {"text": "x"})
        await app.verbs.keep_answer(RequestKey("acme", ANN.id, "key", "first"), 200, "first")
        await app.verbs.give_back_answer(RequestKey("acme", ANN.id, "key", "first"))
        known, _ = await taken(app, "third")
        assert (known.status, known.body) == (201, made)
        assert [each.id for each in await second.jobs()] == [made]


async def test_a_refused_request_gives_its_key_back_unless_it_has_changed_something(
    url: str,
) -> None:
    app = tenant_app(url)
    async with app:
        await taken(app, "first")
        key = RequestKey("acme", ANN.id, "key", "first")
        await app.verbs.give_back_answer(key)
        known, second = await taken(app, "second")
        assert (known.taker, known.done) == ("second", [])
        await second.submit("business", {"text": "x"})
        await app.verbs.give_back_answer(key._replace(taker="second"))
        known, _ = await taken(app, "third")
        assert (known.taker, len(known.done)) == ("third", 1)


def send(url: str, key: str, commit: int = 0, *what: str) -> tuple[int, str]:
    """Send a request with a key from a program of its own: see `keyed_request`."""
    program = [sys.executable, "-m", "tests.support.keyed_request"]
    arguments = [*program, url, key, str(commit), *what]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.once
def test_a_request_whose_server_is_killed_at_any_commit_happens_once(url: str) -> None:
    killed = 0
    for commit in itertools.count(1):
        code, said = send(url, f"key {commit}", commit)
        if code == 0:
            break
        assert (code, said) == (-signal.SIGKILL, "")
        killed += 1
        grow_old(url)
        code, said = send(url, f"key {commit}")
        assert (code, said.split()[0]) == (0, "201")
    assert killed >= 3  # the key is taken, the job is submitted, the answer is kept
    app = App(url)
    jobs = app.sync.find_jobs(JobQuery())
    app.sync.close()
    assert [each.state for each in jobs] == [JobState.PENDING] * (killed + 1)


@pytest.mark.once
@pytest.mark.parametrize(("commit", "begun"), [(1, 0), (2, 50), (3, 60), (4, 60)])
def test_a_command_to_many_jobs_whose_server_is_killed_reaches_each_of_them_once(
    url: str, commit: int, begun: int
) -> None:
    app = App(url)

    @app.job
    async def twice(number: int) -> int:
        return 2 * number

    jobs = app.sync.submit_many([twice(number) for number in range(60)])
    assert send(url, "key", commit, "pause") == (-signal.SIGKILL, "")
    # Somebody resumes them meanwhile, and they are not paused again.
    resumed = app.sync.command_jobs("resume", JobQuery())
    assert len(resumed.affected) == begun
    grow_old(url)
    assert send(url, "key", 0, "pause") == (0, "200 60\n")
    assert send(url, "key", 0, "pause") == (0, "200 60\n")
    for job in jobs:
        events = [each.type for each in job.events()]
        assert events.count("pause.asked") == 1
    app.sync.close()
