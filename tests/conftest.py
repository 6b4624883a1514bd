"""What all tests share."""

import gc
import signal

import pytest
from hypothesis import settings

from tests.support import on_worker
from tests.support.pgbouncer_server import pgbouncer_url
from tests.support.postgres_server import postgres_server, postgres_url
from tests.support.redis_server import redis_server

__all__ = ["pgbouncer_url", "postgres_server", "postgres_url", "redis_server"]

# A red run must be red again: everyday runs draw the same examples each time.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=100)
# For a further interpreter, after the whole suite has passed on the first.
settings.register_profile("light", derandomize=True, deadline=None, max_examples=20)
# `scripts/test --hypothesis-profile=long` searches at random, and for long.
settings.register_profile("long", derandomize=False, deadline=None, max_examples=10_000)
settings.load_profile("ci")

# A shell starts what it runs in the background with Ctrl-C ignored, and programs pass that on to
# those that they start: tests that interrupt a program would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Let garbage collections pass over all that was imported, and take less of the time."""
    gc.collect()
    gc.freeze()


# With PERDURE_TEST_HOST=threads or =os, simulated tests run on a worker of such a host.
on_worker.install()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test, where an OS worker must run it, or parts of it."""
    if on_worker.KIND != "os":
        return None
    on_worker.run_test(pyfuncitem)
    return True


# They use what the other folders try on every interpreter, and take long.
_TRIED_ONCE = tuple(
    f"tests/{folder}/" for folder in ("bench", "docs", "examples", "integrations", "notify", "web")
)


@pytest.hookimpl(tryfirst=True)  # before the markers of the command line are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is left out on further interpreters, and skip what cannot hold on a worker."""
    for item in items:
        # What jobs do on PostgreSQL is the same on every interpreter; how its store talks to the
        # server is tried on each of them by tests/store.
        on_postgres = "[postgres" in item.nodeid and not item.nodeid.startswith("tests/store/")
        if on_postgres or item.nodeid.startswith(_TRIED_ONCE):
            item.add_marker(pytest.mark.once)
        if (why := on_worker.reason_to_skip(item.nodeid)) is not None:
            item.add_marker(pytest.mark.skip(reason=why))
