"""Whoever waits for a job that waits for a person is told so, and how that person answers."""

import logging
import threading

import pytest

from perdure import App, JobContext, StepContext
from perdure.approvals import Person
from tests.support.engine import QUICK

WITHIN = 30
KIM = Person(id="kim", tenant="default", roles=frozenset({"approver"}))


def paying(url: str) -> App:
    app = App(url, worker=QUICK)

    @app.step(approval="required")
    async def pay(ctx: StepContext, amount: int) -> str:
        return f"paid {amount}"

    @app.job
    async def settle(ctx: JobContext) -> str:
        return await pay(7)

    return app


class Told(logging.Handler):
    """Approves when somebody is told how."""

    def __init__(self, app: App) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.levels: list[int] = []
        self._app = app

    def emit(self, record: logging.LogRecord) -> None:
        if "waits for a person to answer" in record.getMessage():
            self.texts.append(record.getMessage())
            self.levels.append(record.levelno)
            threading.Thread(target=self._approve).start()

    def _approve(self) -> None:
        (asked,) = self._app.sync.approvals()
        self._app.sync.decide(asked, "approve", by=KIM)


@pytest.fixture
def told(url: str) -> Told:
    return Told(paying(url))


def test_run_sync_says_that_it_waits_for_a_person_and_how_to_answer(url: str, told: Told) -> None:
    app = told._app  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    log = logging.getLogger("perdure.jobs")
    log.addHandler(told)
    try:
        assert app.run_sync(app.find_job("settle")(), user="ann") == "paid 7"
    finally:
        log.removeHandler(told)
        app.sync.close()
    (text,) = told.texts
    assert "waits for a person to answer 'pay#1': run `perdure approvals approve " in text
    assert told.levels == [logging.WARNING]
    assert "--url sqlite:///" in text or "--url 'postgresql://" in text
