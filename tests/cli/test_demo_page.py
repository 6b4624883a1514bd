"""`perdure demo` with its page: the link, what waits there, a kill, and the end by Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.support.cli import LONGEST_WAIT, ROOT, environment, lines_until
from tests.support.sign_in import signed_in, use

LINK = re.compile(r"http://\S+/login#link=\S+")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "perdure", "demo", "--pace", "0.1"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environment(tmp_path), "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def links(lines: list[str]) -> list[str]:
    return [found[0] for line in lines if (found := LINK.search(line))]


@pytest.mark.once
@pytest.mark.timeout(150)
def test_the_demo_ends_with_a_page_that_stays_until_ctrl_c(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    told = lines_until(demo, "Ctrl-C ends the demo")
    text = "\n".join(told)
    assert "Nothing lost, nothing duplicated" in text
    assert "0.04 of 0.05 USD are spent" in text
    assert re.search(r"parser .* restarts \d", text)
    first, last = links(told)
    assert first != last

    with closing(signed_in(last)) as browser:
        assert httpx.get(f"{browser.base_url}/api/v1/jobs").status_code == 401
        assert use(browser, last).status_code == 403
        waiting = browser.get("/api/v1/jobs", params={"q": "waits:approval"}).json()["items"]
        assert {job["name"] for job in waiting} == {"find_shipping", "pay_out"}
        assert "<script" in browser.get("/").text
        elsewhere = {"origin": "http://example.com"}
        assert browser.post("/api/v1/jobs", json={}, headers=elsewhere).status_code == 403

    worker = re.search(r"kill -9 (\d+) +in another terminal", text)
    assert worker is not None
    os.kill(int(worker[1]), signal.SIGKILL)
    assert "continues its jobs" in lines_until(demo, "That worker died")[-1]

    demo.send_signal(signal.SIGINT)
    rest, _ = demo.communicate(timeout=LONGEST_WAIT)
    assert "The demo has ended" in rest
    assert demo.returncode == 0
    assert list(tmp_path.glob("perdure-demo-*")) == []


@pytest.mark.once
@pytest.mark.timeout(150)
def test_ctrl_c_in_the_middle_of_the_demo_is_not_a_success(demo: subprocess.Popen[str]) -> None:
    lines_until(demo, "kill -9")
    demo.send_signal(signal.SIGINT)
    rest, _ = demo.communicate(timeout=LONGEST_WAIT)
    assert demo.returncode == 130
    assert "Traceback" not in rest
