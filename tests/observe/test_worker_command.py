"""`perdure worker --metrics-port`: a real worker, scraped over HTTP while it works."""

import json
import re
import signal
import subprocess
from http.client import HTTPConnection
from pathlib import Path

from tests.support.cli import APP, lines_until, perdure, started


def fetch(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_worker_serves_metrics_and_probes_and_logs_json(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    words = ("worker", APP, "--url", url, "--metrics-port", 0, "--log-format", "json")
    with started(tmp_path, *words) as worker:
        lines = [json.loads(line) for line in lines_until(worker, "up: ")]
        (told,) = [each["message"] for each in lines if "metrics:" in each["message"]]
        found = re.search(r":(\d+)/metrics", told)
        assert found is not None
        port = int(found[1])
        assert fetch(port, "/healthz") == (200, "ok\n")
        assert fetch(port, "/readyz") == (200, "ok\n")
        given = ("submit", APP, "welcome", "-a", '{"name": "Kim"}', "--wait", "--url", url)
        done = perdure(tmp_path, *given)
        assert done.returncode == 0, done.stderr
        text = fetch(port, "/metrics")[1]
        assert 'perdure_jobs_total{name="welcome",outcome="completed"} 1.0' in text
        assert 'perdure_workers{state="alive"} 1.0' in text
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0


def test_a_log_level_that_is_none_is_refused(tmp_path: Path) -> None:
    done: subprocess.CompletedProcess[str] = perdure(tmp_path, "worker", APP, "--log-level", "loud")
    assert (done.returncode, "no log level" in done.stderr) == (2, True)
