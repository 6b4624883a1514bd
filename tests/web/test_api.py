"""The routes of the API on both databases, through the whole app, without a network."""

import asyncio
from typing import Any

import httpx
import pytest

from perdure import App, JobContext, StepContext
from perdure.approvals import ApprovalTerms, Policy
from perdure.errors import Permanent
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from tests.support.store import entry, new_job, started, write_of
from tests.support.web_client import api_of


@pytest.fixture
def app(url: str) -> App:
    policy = Policy(terms={level: ApprovalTerms(four_eyes=False) for level in RiskLevel})
    app = App(url, policy=policy)

    @app.step
    async def double(number: int) -> int:
        return 2 * number

    @app.step
    async def refuse(number: int) -> int:
        raise Permanent(f"{number} is odd")

    @app.step(risk=RiskLevel.MEDIUM, approval="required")
    async def pay(amount: int) -> int:
        return amount

    @app.job
    async def twice(number: int) -> int:
        return await double(number) + await double(number)

    @app.job
    async def fails(number: int) -> int:
        return await refuse(number)

    @app.job
    async def asks(amount: int) -> int:
        return await pay(amount)

    @app.job
    async def listens(ctx: JobContext) -> str:
        ctx.emit("waiting")
        return await ctx.receive("name", kind=str)

    del twice, fails, asks, listens
    return app


async def long_text(size: int) -> str:
    return "x" * size


async def submitted(api: httpx.AsyncClient, name: str, *args: Any, **more: Any) -> str:
    answer = await api.post("/api/v1/jobs", json={"name": name, "arguments": list(args), **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def test_a_job_is_submitted_run_listed_and_shown(app: App) -> None:
    async with api_of(app) as api, app.running():
        id = await submitted(api, "twice", 3, labels={"team": "data"}, key="one")
        await (await app.handle(id)).wait()
        shown = (await api.get(f"/api/v1/jobs/{id}")).json()
        assert (shown["state"], shown["result"], shown["input"]) == ("COMPLETED", 12, {"number": 3})
        assert (shown["entries"], shown["user"], shown["key"]) == (2, "kim", "one")
        assert shown["allowed"] == ["fork"]
        listed = (await api.get("/api/v1/jobs", params={"q": "label.team:data"})).json()
        assert [each["id"] for each in listed["items"]] == [id]
        assert listed["next"] is None
        counts = (await api.get("/api/v1/jobs/counts")).json()
        assert counts["counts"] == {"COMPLETED": 1}
        journal = (await api.get(f"/api/v1/jobs/{id}/journal")).json()
        assert [(each["id"], each["output"]) for each in journal["items"]] == [
            ("double#1", 6),
            ("double#2", 6),
        ]
        slim = (await api.get(f"/api/v1/jobs/{id}/journal?slim=1&limit=1")).json()
        assert "output" not in slim["items"][0]
        assert slim["next"] == "1"
        types = [
            each["type"] for each in (await api.get(f"/api/v1/jobs/{id}/events")).json()["items"]
        ]
        assert types[0] == "submitted"


async def test_pages_follow_each_other_without_gap_or_repetition(app: App) -> None:
    async with api_of(app) as api:
        ids = [await submitted(api, "twice", number) for number in range(5)]
        seen: list[str] = []
        cursor: str | None = None
        while True:
            params = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
            page = (await api.get("/api/v1/jobs", params=params)).json()
            seen += [each["id"] for each in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert seen == ids[::-1]
        bad = await api.get("/api/v1/jobs", params={"cursor": "nonsense"})
        assert (bad.status_code, bad.json()["code"]) == (400, "bad_cursor")


async def test_commands_change_a_job_and_are_refused_where_its_state_does_not_allow(
    app: App,
) -> None:
    async with api_of(app) as api:
        id = await submitted(api, "listens")
        paused = await api.post(f"/api/v1/jobs/{id}/pause", json={"reason": "lunch"})
        assert (paused.status_code, paused.json()["state"]) == (200, "PAUSED")
        resumed = await api.post(f"/api/v1/jobs/{id}/resume", json={})
        assert resumed.json()["state"] == "PENDING"
        cancelled = await api.post(f"/api/v1/jobs/{id}/cancel", json={})
        assert cancelled.json()["state"] == "CANCELLED"
        again = await api.post(f"/api/v1/jobs/{id}/pause", json={})
        assert (again.status_code, again.json()["code"]) == (409, "illegal_transition")
        assert again.headers["content-type"] == "application/problem+json"


async def test_nobody_is_offered_to_undo_or_retry_what_was_undone(app: App) -> None:
    @app.step
    async def reserve(ctx: StepContext) -> None: ...

    @reserve.compensate
    async def release(ctx: StepContext, output: None) -> None: ...

    @app.job(on_cancel="compensate")
    async def order(ctx: JobContext) -> None:
        await reserve()
        await ctx.receive("go")

    _ = release
    async with api_of(app) as api, app.running():
        handle = await app.submit(order())
        await handle.until(JobState.WAITING)
        await handle.cancel()
        await handle.until(JobState.CANCELLED)
        shown = (await api.get(f"/api/v1/jobs/{handle.id}")).json()
        assert (shown["undone"], shown["allowed"]) == (True, ["fork"])
        for action in ("retry", "compensate"):
            asked = await api.post(f"/api/v1/jobs/{handle.id}/{action}", json={"reason": "x"})
            assert asked.status_code == 409


async def test_a_failed_job_says_why_and_a_retry_runs_it_again(app: App) -> None:
    async with api_of(app) as api, app.running():
        id = await submitted(api, "fails", 3)
        await (await app.handle(id)).until(JobState.FAILED)
        shown = (await api.get(f"/api/v1/jobs/{id}")).json()
        assert (
            shown["failure"]["message"]
            == "step refuse#1 failed after 1 attempt: perdure.errors.Permanent: 3 is odd"
        )
        assert {"retry", "compensate"} <= set(shown["allowed"])
        dry = await api.post(
            "/api/v1/jobs/bulk",
            json={"action": "retry", "q": "name:fails", "reason": "", "dry_run": True},
        )
        assert (dry.json()["affected"], dry.json()["dry_run"]) == (1, True)


async def test_jobs_that_are_named_are_commanded_by_one_request_of_their_own_tenant(
    app: App,
) -> None:
    async with api_of(app) as api:
        ids = [await submitted(api, "twice", number) for number in range(3)]
        elsewhere = await app.submit(app.jobs["twice"](9), tenant="other")
        body = {"action": "cancel", "ids": [*ids[:2], elsewhere.id], "reason": "too many"}
        done = (await api.post("/api/v1/jobs/bulk", json=body)).json()
        assert (done["affected"], done["refused"]) == (2, 0)
        again = (await api.post("/api/v1/jobs/bulk", json={**body, "dry_run": True})).json()
        assert (again["affected"], again["refused"]) == (0, 2)  # each in its state is told why
        states = [(await api.get(f"/api/v1/jobs/{id}")).json()["state"] for id in ids]
        assert states == ["CANCELLED", "CANCELLED", "PENDING"]
        assert (await elsewhere.job()).state is JobState.PENDING
        cases: list[dict[str, Any]] = [{"q": "", "ids": ids}, {}, {"ids": []}]
        for wrong in cases:
            answer = await api.post("/api/v1/jobs/bulk", json={"action": "cancel", **wrong})
            assert answer.status_code == 422


async def test_the_tree_below_a_job_is_told_level_by_level(app: App) -> None:
    async with api_of(app) as api:
        root = await submitted(api, "twice", 1)
        store = await app.store()
        below = [("b", root), ("c", "b"), ("a", root), ("other", "elsewhere")]
        for id, parent in below:
            await store.submit([new_job(id, tenant="default", parent=parent)])
        tree = (await api.get(f"/api/v1/jobs/{root}/tree")).json()
        assert [(each["id"], each["parent"]) for each in tree["items"]] == [
            ("b", root),
            ("a", root),
            ("c", "b"),
        ]
        assert tree["cut"] is False
        assert (await api.get("/api/v1/jobs/nobody/tree")).status_code == 404


async def test_messages_and_output_of_a_job(app: App) -> None:
    async with api_of(app) as api:
        id = await submitted(api, "listens")
        sent = await api.post(f"/api/v1/jobs/{id}/send", json={"topic": "name", "payload": "Kim"})
        assert sent.status_code == 200, sent.text
        waiting = (await api.get(f"/api/v1/jobs/{id}/messages")).json()["items"]
        assert [(each["topic"], each["payload"]) for each in waiting] == [("name", "Kim")]
        async with app.running():
            assert await (await app.handle(id)).result() == "Kim"
        output = (await api.get(f"/api/v1/jobs/{id}/output/output")).json()
        assert [each["value"] for each in output["items"]] == ["waiting"]
        assert output["ended"] is True


async def test_an_ended_job_knows_the_keys_it_has_and_takes_nothing_new(app: App) -> None:
    async with api_of(app) as api:
        id = await submitted(api, "listens")

        async def send(key: str) -> tuple[int, str]:
            body = {"topic": "name", "payload": "Kim", "key": key}
            answer = await api.post(f"/api/v1/jobs/{id}/send", json=body)
            return answer.status_code, answer.json().get("code", "")

        assert await send("1") == (200, "")
        async with app.running():
            assert await (await app.handle(id)).result() == "Kim"
        assert await send("1") == (200, "")
        assert await send("2") == (409, "illegal_transition")


async def test_an_approval_is_listed_shown_and_decided_with_the_hash_that_was_seen(
    app: App,
) -> None:
    async with api_of(app, "ann@default approver,operator") as api, app.running():
        id = await submitted(api, "asks", 5)
        await (await app.handle(id)).until(JobState.WAITING)
        (asked,) = (await api.get("/api/v1/approvals", params={"mine": 1})).json()["items"]
        assert asked["action"]["arguments"] == {"amount": 5}
        path = f"/api/v1/approvals/{asked['id']}"
        stale = await api.post(f"{path}/decide", json={"verdict": "approve", "action_hash": "x"})
        assert (stale.status_code, stale.json()["code"]) == (409, "changed")
        yes = {"verdict": "approve", "action_hash": asked["action"]["hash"]}
        done = await api.post(f"{path}/decide", json=yes)
        assert done.json()["state"] == "APPROVED", done.text
        assert await (await app.handle(id)).result() == 5


@pytest.mark.parametrize("by", ["decide", "compensate"])
async def test_a_job_that_is_parked_by_its_failure_is_undone_by_an_answer_or_a_command(
    app: App, by: str
) -> None:
    @app.job(on_failure="ask")
    async def offers_undo(number: int) -> int:
        return await app.find_step("refuse")(number)

    async with api_of(app, "ann@default approver,operator") as api, app.running():
        api.headers["x-signed-in"] = str(await (await app.store()).now())
        id = await submitted(api, offers_undo.name, 10)
        handle = await app.handle(id)
        await handle.until(JobState.NEEDS_ATTENTION)
        (asked,) = (await api.get("/api/v1/approvals", params={"mine": 1})).json()["items"]
        assert asked["action"]["arguments"]["failed"] == "refuse#1"
        assert "10 is odd" in asked["action"]["arguments"]["error"]
        path = f"/api/v1/approvals/{asked['id']}"
        if by == "decide":
            yes = {"verdict": "approve", "action_hash": asked["action"]["hash"]}
            done = await api.post(f"{path}/decide", json=yes)
        else:
            done = await api.post(f"/api/v1/jobs/{id}/compensate", json={"reason": "no use"})
        assert done.status_code == 200, done.text
        assert await handle.wait() is JobState.COMPENSATED
        state = (await api.get(path)).json()["state"]
        assert state == ("APPROVED" if by == "decide" else "WITHDRAWN")


async def test_a_large_payload_is_referred_to_and_read_in_slices(app: App) -> None:
    async with api_of(app) as api, app.running():
        app.job(long_text)
        id = await submitted(api, "long_text", 20_000)
        await (await app.handle(id)).wait()
        shown = (await api.get(f"/api/v1/jobs/{id}")).json()
        large = shown["large"]["result"]
        assert (shown["result"], list(shown["large"])) == (None, ["result"])
        assert (large["bytes"], large["preview"][:3]) == (20_002, '"xx')
        whole = await api.get(large["href"])
        assert whole.json() == "x" * 20_000
        part = await api.get(large["href"], params={"offset": 1, "length": 4})
        assert (part.text, part.headers["x-total-chars"]) == ("xxxx", "20002")


async def test_queues_schedules_and_the_summary(app: App) -> None:
    async with api_of(app, "kim@* admin") as api:
        await submitted(api, "twice", 1)
        assert (await api.post("/api/v1/queues/default/pause", json={})).json() == {"changed": True}
        (queue,) = (await api.get("/api/v1/queues")).json()["items"]
        assert (queue["name"], queue["paused"], queue["ready"]) == ("default", True, 1)
        put = await api.put(
            "/api/v1/schedules/nightly",
            json={"cron": "0 3 * * *", "job": "twice", "arguments": {"number": 1}},
        )
        assert put.status_code == 200, put.text
        (schedule,) = (await api.get("/api/v1/schedules")).json()["items"]
        assert len(schedule["next"]) == 5
        run = await api.post("/api/v1/schedules/nightly/run", json={})
        assert run.json()["input"] == {"number": 1}
        assert (await api.delete("/api/v1/schedules/nightly")).status_code == 204
        summary = (await api.get("/api/v1/summary")).json()
        assert (summary["counts"], summary["workers"]) == ({"PENDING": 2}, 0)
        session = (await api.get("/api/v1/session")).json()
        assert session["principal"]["id"] == "kim"


async def test_single_things_have_an_etag(app: App) -> None:
    async with api_of(app) as api:
        id = await submitted(api, "twice", 1)
        first = await api.get(f"/api/v1/jobs/{id}")
        known = {"if-none-match": first.headers["etag"]}
        assert (await api.get(f"/api/v1/jobs/{id}", headers=known)).status_code == 304
        await api.post(f"/api/v1/jobs/{id}/cancel", json={})
        assert (await api.get(f"/api/v1/jobs/{id}", headers=known)).status_code == 200


async def test_whoever_is_not_signed_in_or_not_allowed_is_refused(app: App) -> None:
    async with api_of(app, "") as api:
        nobody = await api.get("/api/v1/jobs")
        assert (nobody.status_code, nobody.json()["code"]) == (401, "unauthenticated")
        assert "removed" not in nobody.json()["detail"]
        viewer = {"x-who": "vic@default viewer"}
        body = {"name": "twice", "arguments": [1]}
        refused = await api.post("/api/v1/jobs", json=body, headers=viewer)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        boss = {"x-who": "kim@default operator"}
        made = await api.post("/api/v1/jobs", json=body, headers=boss)
        other = await api.get(
            f"/api/v1/jobs/{made.json()['id']}", headers={"x-who": "eve@other admin"}
        )
        assert (other.status_code, other.json()["code"]) == (404, "job_not_found")


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ({"json": {"name": "twice", "arguments": ["x"]}}, 422, "invalid_arguments"),
        ({"json": {"name": "thrice"}}, 404, "unknown_name"),
        ({"json": {"name": "twice", "colour": "red"}}, 422, "invalid_body"),
        ({"json": {}}, 422, "invalid_body"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "malformed_json"),
        ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415, "not_json"),
        (
            {"content": b"[" * 100 + b"]" * 100, "headers": {"content-type": "application/json"}},
            400,
            "too_deep",
        ),
        (
            {"content": b" " * 2_000_000, "headers": {"content-type": "application/json"}},
            413,
            "body_too_large",
        ),
    ],
)
async def test_a_body_that_does_not_fit_is_a_problem_with_a_code(
    app: App, given: dict[str, Any], status: int, code: str
) -> None:
    async with api_of(app) as api:
        answer = await api.post("/api/v1/jobs", **given)
        assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_a_field_that_does_not_exist_is_refused_with_those_that_do(app: App) -> None:
    async with api_of(app) as api:
        body = await api.post("/api/v1/jobs", json={"nmae": "twice"})
        query = await api.get("/api/v1/jobs", params={"colour": "red"})
    assert "`nmae`; there are name, arguments, plan, key, queue" in body.json()["detail"]
    assert "`colour`; there are " in query.json()["detail"]


async def test_unknown_paths_and_methods_are_problems_too(app: App) -> None:
    async with api_of(app) as api:
        assert (await api.get("/api/v1/nothing")).json()["code"] == "not_found"
        assert (await api.delete("/api/v1/jobs")).json()["code"] == "method_not_allowed"
        wrong = await api.get("/api/v1/jobs", params={"colour": "red"})
        assert (wrong.status_code, wrong.json()["code"]) == (400, "bad_query")


async def test_every_answer_carries_the_security_headers(app: App) -> None:
    async with api_of(app) as api:
        for path in ("/api/v1/session", "/api/v1/nothing"):
            answer = await api.get(path)
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_post_that_is_sent_twice_happens_once_and_gets_the_same_answer(app: App) -> None:
    async with api_of(app) as api:
        body, key = {"name": "twice", "arguments": [1]}, {"idempotency-key": "k1"}
        answers = await asyncio.gather(
            *(api.post("/api/v1/jobs", json=body, headers=key) for _ in range(5))
        )
        assert {(each.status_code, each.json()["id"]) for each in answers} == {
            (201, answers[0].json()["id"])
        }
        assert sum("idempotent-replayed" in each.headers for each in answers) == 4
        other = await api.post("/api/v1/jobs", json={**body, "key": "x"}, headers=key)
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
        else_ = {**key, "x-who": "ann@default operator"}
        mine = await api.post("/api/v1/jobs", json=body, headers=else_)
        assert mine.json()["id"] != answers[0].json()["id"]
        counts = (await api.get("/api/v1/jobs/counts")).json()["counts"]
        assert counts == {"PENDING": 2}


async def test_a_refused_request_may_be_sent_again_with_its_key(app: App) -> None:
    async with api_of(app) as api:
        key = {"idempotency-key": "k2"}
        refused = await api.post("/api/v1/jobs", json={"name": "thrice"}, headers=key)
        assert (refused.status_code, refused.json()["code"]) == (404, "unknown_name")

        @app.job
        async def thrice() -> None: ...

        again = await api.post("/api/v1/jobs", json={"name": "thrice"}, headers=key)
        assert again.status_code == 201
        assert "idempotent-replayed" not in again.headers


async def test_ten_thousand_entries_of_a_journal_are_one_slim_answer(app: App) -> None:
    async with api_of(app, "kim@* admin") as api:
        store = await app.store()
        claim = await started(store, "long")
        for first in range(1, 10_001, 1000):
            entries = [
                entry(seq, output=b'"' + b"x" * 100 + b'"') for seq in range(first, first + 1000)
            ]
            await store.write(write_of(claim, *entries))
        answer = await api.get("/api/v1/jobs/long/journal?slim=1&limit=10000")
        assert len(answer.json()["items"]) == 10_000
        assert len(answer.content) < 2_000_000
        whole = await api.get("/api/v1/jobs/long/journal?limit=1000")
        assert (len(whole.json()["items"]), whole.json()["next"]) == (1000, "1000")
