"""The example of the documentation runs as a program, and may be run again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.onboarding.__main__ import ANN
from examples.onboarding.gateway import GATEWAY
from examples.onboarding.jobs import app as example
from examples.onboarding.jobs import convert, send_mail
from examples.onboarding.model import Mail
from perdure import App, JobContext, JobState
from perdure.errors import Permanent

ROOT = Path(__file__).parent.parent.parent


def lines_of_a_run(folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.onboarding"],
        cwd=ROOT,
        env={**os.environ, "PERDURE_URL": f"sqlite:///{folder / 'onboarding.db'}"},
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_customer_gets_one_mail_when_the_contract_is_signed(tmp_path: Path) -> None:
    assert lines_of_a_run(tmp_path) == [
        "send the contract? ann approves",
        "mail 1 to kim@example.com",
        "Kim signed; 2 checks, 250 pages",
        "3 rows loaded",
    ]
    # The second run finds the job ended, and sends nothing.
    assert lines_of_a_run(tmp_path) == ["mail 1 to kim@example.com", "3 rows loaded"]


def test_a_step_that_breaks_off_reports_what_it_did_before_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.include(example)
    convert_one, broken = GATEWAY.convert, list[str]()

    async def breaks_once(name: str) -> str:
        if name == "page 150" and not broken:
            broken.append(name)
            raise ConnectionError("the converter does not answer")
        return await convert_one(name)

    monkeypatch.setattr(GATEWAY, "convert", breaks_once)

    @app.job
    async def job(ctx: JobContext) -> int:
        report = await convert([f"page {number}" for number in range(250)])
        return len(report.converted)

    assert app.run_sync(job()) == 250
    assert broken == ["page 150"]


def test_who_got_a_mail_of_a_job_that_failed_gets_an_apology(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.include(example)

    @app.job
    async def fails(ctx: JobContext) -> None:
        await send_mail(Mail("lee@example.com", "Welcome", "…"))
        raise Permanent("the contract is void")

    async def main() -> JobState:
        handle = await app.submit(fails(), tenant="acme", user="kim")
        await handle.until(JobState.WAITING)
        (asked,) = await app.approvals()  # a mail cannot be taken back
        await app.decide(asked, "approve", by=ANN)
        return await handle.wait("10s")

    assert app.run_sync(main) is JobState.COMPENSATED
    sent = [mail.subject for mail in GATEWAY.sent.values() if mail.to == "lee@example.com"]
    assert sent == ["Welcome", "Sorry"]
