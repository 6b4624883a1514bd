"""Workers and their processes over HTTP."""

from typing import Any
from urllib.parse import quote

from perdure import App
from perdure.engine.settings import WorkerSettings
from tests.support.web_client import api_of

ROOT = "kim@* admin"
KILLS = WorkerSettings(allow_kill=True, poll="200ms")


def _all(roots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    waiting = list(roots)
    while waiting:
        found.append(waiting.pop())
        waiting += found[-1]["children"]
    return found


async def test_workers_are_listed_drained_and_resumed(url: str) -> None:
    app = App(url)
    async with api_of(app, ROOT) as api, app.running():
        (worker,) = (await api.get("/api/v1/workers")).json()["items"]
        assert (worker["draining"], worker["stale"], worker["allow_kill"]) == (False, False, False)
        path = f"/api/v1/workers/{worker['id']}"
        drained = await api.post(f"{path}/drain", json={})
        assert drained.json() == {"draining": True, "running": 0}
        assert (await api.get("/api/v1/workers")).json()["items"][0]["draining"] is True
        resumed = await api.post(f"{path}/resume", json={})
        assert resumed.json()["draining"] is False
        nobody = await api.post("/api/v1/workers/nobody/drain", json={})
        assert (nobody.status_code, nobody.json()["code"]) == (404, "worker_not_found")


async def test_a_tree_a_process_and_its_restart(url: str) -> None:
    app = App(url, worker=KILLS)
    async with api_of(app, ROOT) as api, app.running():
        (worker,) = (await api.get("/api/v1/workers")).json()["items"]
        path = f"/api/v1/workers/{worker['id']}"
        tree = (await api.get(f"{path}/tree")).json()
        (pruner,) = [each for each in _all(tree["roots"]) if each["id"] == "pruner"]
        process = f"{path}/processes/{quote(pruner['pid'])}"
        shown = (await api.get(process)).json()
        assert (shown["pid"], shown["restart"]) == (pruner["pid"], "permanent")
        assert shown["stack"]
        killed = (await api.post(f"{process}/restart", json={})).json()
        assert killed == {"pid": pruner["pid"], "killed": True, "restarts": True}
        gone = await api.get(process)
        assert (gone.status_code, gone.json()["code"]) == (409, "command_refused")
        assert (await api.get("/api/v1/up")).status_code == 200


async def test_a_worker_that_lets_nobody_kill_says_so(url: str) -> None:
    app = App(url)
    async with api_of(app, ROOT) as api, app.running():
        (worker,) = (await api.get("/api/v1/workers")).json()["items"]
        tree = (await api.get(f"/api/v1/workers/{worker['id']}/tree")).json()
        pid = quote(tree["roots"][0]["pid"])
        refused = await api.post(f"/api/v1/workers/{worker['id']}/processes/{pid}/kill", json={})
        assert (refused.status_code, refused.json()["code"]) == (409, "command_refused")
        assert "allow_kill=True" in refused.json()["detail"]


async def test_a_tenant_sees_no_machine_and_no_process(url: str) -> None:
    app = App(url)
    async with api_of(app, "kim@acme admin") as api, app.running():
        (worker,) = (await api.get("/api/v1/workers")).json()["items"]
        assert (worker["host"], worker["pid"]) == ("", 0)
        for path in ("tree", "processes/x"):
            denied = await api.get(f"/api/v1/workers/{worker['id']}/{path}")
            assert denied.status_code == 403
