"""The files for operations, run by what they are for: systemd, nginx, Kubernetes' own schemas.

What cannot be run without Docker, the image, is run as far as it is commands: what the container
starts, with its environment, and what tells whether it is well.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from perdure import App
from perdure.cli.ops import OpsFile, ops_file
from tests.support.cli import ROOT, environment, lines_until, perdure

pytestmark = pytest.mark.once

SHOP = """
from perdure import App

app = App("sqlite:///jobs.db")

@app.job
async def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with the code of an app, as a container has it."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(SHOP)
    return tmp_path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


# systemd

systemd_analyze = shutil.which("systemd-analyze")


@pytest.mark.skipif(systemd_analyze is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit_and_calls_it_hardened(tmp_path: Path) -> None:
    unit = tmp_path / "perdure-worker@.service"
    # The unit is checked for programs that are not there.
    here = str(Path(sys.executable).parent / "perdure")
    unit.write_text(ops_file(OpsFile.SYSTEMD).replace("/srv/app/.venv/bin/perdure", here))
    verified = _analyze("verify", unit)
    assert (verified.returncode, verified.stderr) == (0, "")
    rated = _analyze("security", "--offline=yes", "--threshold=25", unit)
    assert rated.returncode == 0, rated.stdout  # at most 2.5 of 10 points of exposure


def _analyze(*words: object) -> subprocess.CompletedProcess[str]:
    command = [str(systemd_analyze), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# Kubernetes


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(ops_file(OpsFile.KUBERNETES)))


@pytest.mark.parametrize("kind", ["Deployment", "PodDisruptionBudget"])
def test_kubernetes_knows_every_field_of_a_manifest(kind: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing")
    (manifest,) = (each for each in manifests() if each["kind"] == kind)
    for version in ("1.29", "1.31"):
        validate.validate(manifest, version, strict=True)


def test_manifests_select_the_pods_that_they_make() -> None:
    deployment, budget, scaling = manifests()
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert scaling["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    pod = deployment["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    ports = {port["name"] for port in worker["ports"]}
    probes = [worker[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert {probe["port"] for probe in probes} <= ports
    assert {each["name"] for each in worker["volumeMounts"]} == {
        each["name"] for each in pod["volumes"]
    }
    assert worker["securityContext"]["readOnlyRootFilesystem"]
    assert deployment["spec"]["replicas"] == scaling["spec"]["minReplicaCount"]


# The container file


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments."""
    text = re.sub(r"^#.*\n", "", ops_file(OpsFile.DOCKER), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if line)]


def arguments_of(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def test_the_container_file_is_as_linters_want_it() -> None:
    known = {"FROM", "WORKDIR", "RUN", "ENV", "COPY", "USER", "EXPOSE", "STOPSIGNAL"}
    assert {name for name, _ in instructions()} == known | {"HEALTHCHECK", "ENTRYPOINT", "CMD"}
    stages = {rest.partition(" AS ")[2] for rest in arguments_of("FROM")}
    for rest in arguments_of("FROM"):
        assert re.match(r"\w+:[\d.]+", rest)  # a version, not the latest
    for copied in arguments_of("COPY"):
        stage = re.match(r"--from=(\w+)", copied)
        assert stage is None or stage[1] in stages
    for command in arguments_of("RUN"):
        assert "pip install" not in command or "--no-cache-dir" in command
        shlex.split(command)
    assert arguments_of("USER")[-1].isdigit()  # runAsNonRoot asks for a number
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert not re.search(r"password|secret|token", ops_file(OpsFile.DOCKER), re.IGNORECASE)


def container_environment(port: int) -> dict[str, str]:
    """Return what ENV sets in the last stage, with another port: 9100 may be taken here."""
    given = dict(word.split("=", 1) for word in shlex.split(arguments_of("ENV")[-1]))
    del given["PATH"]
    return {**os.environ, **given, "PERDURE_METRICS_PORT": str(port)}


def test_what_the_container_starts_is_well_and_stops_by_its_signal(shop: Path) -> None:
    port = free_port()
    started = json.loads(arguments_of("ENTRYPOINT")[0]) + json.loads(arguments_of("CMD")[0])
    assert started[0] == "perdure"
    healthy = json.loads(arguments_of("HEALTHCHECK")[0].partition("CMD ")[2])
    healthy = [word.replace("9100", str(port)) for word in healthy]
    with subprocess.Popen(
        [sys.executable, "-m", *started],
        cwd=shop,
        env=container_environment(port),
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        try:
            assert worker.stderr is not None
            logged = (json.loads(line)["message"] for line in worker.stderr)  # as JSON: see ENV
            assert any(message.startswith("up: process") for message in logged)
            checked = subprocess.run([sys.executable, *healthy[1:]], check=False)
            worker.send_signal(getattr(signal, arguments_of("STOPSIGNAL")[0]))
            assert (checked.returncode, worker.wait()) == (0, 0)
        finally:
            worker.kill()


# nginx

nginx = shutil.which("nginx")
needs_nginx = pytest.mark.skipif(
    nginx is None or shutil.which("openssl") is None, reason="nginx or openssl is not installed"
)

CONFIGURATION = """
worker_processes 1;
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {folder}/cert.pem;
    ssl_certificate_key {folder}/key.pem;
    {location}
  }}
}}
"""


def location(port: int) -> str:
    """Return what the documentation tells nginx, with another port."""
    page = (ROOT / "docs/jobs/dashboard.md").read_text("utf-8")
    found = re.search(r"```text\n(location /ops/ .*?)```", page, re.DOTALL)
    assert found is not None
    return found[1].replace("127.0.0.1:8080", f"127.0.0.1:{port}")


@contextmanager
def proxied(folder: Path, upstream: int) -> Generator[str]:
    """Run nginx before a server, with TLS; yield where it is."""
    port = free_port()
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
        ],
        capture_output=True,
        check=True,
    )
    text = CONFIGURATION.format(folder=folder, port=port, location=location(upstream))
    (folder / "nginx.conf").write_text(text)
    command = [str(nginx), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    tried = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as program:
        try:
            while not _listens(port):
                assert program.poll() is None
            yield f"https://localhost:{port}/ops"
        finally:
            program.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def served(folder: Path, url: str, *words: str) -> Generator[int]:
    """Run `perdure serve`; yield its port."""
    port = free_port()
    command = [sys.executable, "-m", "perdure", "serve", "--url", url, "--port", str(port), *words]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(folder), stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            lines_until(program, f":{port}")
            yield port
        finally:
            program.terminate()


@pytest.fixture
async def url(tmp_path: Path) -> str:
    where = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with App(where) as app:
        await app.store()
    return where


def token(folder: Path, url: str) -> str:
    words = ("tokens", "create", "ann", "--role", "admin", "--person", "ann", "--url", url)
    return perdure(folder, *words).stdout.strip()


@needs_nginx
async def test_page_sign_in_and_events_pass_through_nginx(tmp_path: Path, url: str) -> None:
    app = App(url)

    @app.job
    async def greet(name: str) -> str:
        return f"hello {name}"

    with ExitStack() as stack:
        words = ("--trusted-proxy", "127.0.0.1", "--root-path", "/ops")
        upstream = stack.enter_context(served(tmp_path, url, *words))
        base = stack.enter_context(proxied(tmp_path, upstream))
        secret = token(tmp_path, url)
        async with httpx.AsyncClient(verify=False, timeout=30) as client, app:
            assert 'content="/ops/"' in (await client.get(f"{base}/")).text
            assert (await client.get(f"{base}/api/v1/jobs")).status_code == 401
            origin = base.removesuffix("/ops")
            signed_in = await client.post(
                f"{base}/login", data={"token": secret}, headers={"origin": origin}
            )
            assert signed_in.status_code == 303
            # The proxy is believed that the connection is encrypted.
            assert all(name.startswith("__Host-") for name in client.cookies)
            assert (await client.get(f"{base}/api/v1/jobs")).json()["items"] == []
            events = f"{base}/api/v1/events?topics=jobs"
            async with client.stream("GET", events) as stream:
                lines = stream.aiter_lines()
                async for line in lines:  # nothing is held back, and it follows from here on
                    if line.startswith("id:"):
                        break
                job = await app.submit(greet("Kim"))
                async for line in lines:
                    if job.id in line:
                        break


@needs_nginx
def test_a_server_without_a_trusted_proxy_answers_to_no_public_name(
    tmp_path: Path, url: str
) -> None:
    with served(tmp_path, url) as upstream, proxied(tmp_path, upstream) as base:
        asked = httpx.get(f"{base}/api/v1/jobs", verify=False, headers={"host": "jobs.example"})
        assert asked.status_code == 421
    refused = perdure(tmp_path, "serve", "--url", url, "--host", "0.0.0.0")
    assert refused.returncode == 2
    assert "can be reached by others" in refused.stderr
