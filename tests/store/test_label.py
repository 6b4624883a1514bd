"""Labels: stored with a job, found by index, gone with the job."""

from perdure.jobs.model import JobQuery
from perdure.jobs.state import JobState
from perdure.store.store import Store
from tests.support.store import claim_one, ends, new_job, sql, started, write_of


async def listed(store: Store, labels: dict[str, str], **values: object) -> list[str]:
    query = JobQuery(labels=labels, **values)  # pyright: ignore[reportArgumentType]  its own fields
    return [job.id for job in await store.jobs(query)]


async def test_jobs_are_found_by_all_of_the_labels_asked_for(store: Store) -> None:
    await store.submit([new_job("a", labels={"team": "data", "env": "test"})])
    await store.submit([new_job("b", labels={"team": "data"})])
    await store.submit([new_job("c", labels={"team": "web", "env": "test"}), new_job("d")])
    assert await listed(store, {}) == ["d", "c", "b", "a"]
    assert await listed(store, {"team": "data"}) == ["b", "a"]
    assert await listed(store, {"team": "data", "env": "test"}) == ["a"]
    assert await listed(store, {"env": "test", "team": "web"}) == ["c"]
    assert await listed(store, {"team": "data", "env": "live"}) == []
    assert await listed(store, {"data": "team"}) == []
    assert await listed(store, {"team": "data"}, states=(JobState.RUNNING,)) == []
    assert await listed(store, {"team": "data"}, tenant="other") == []


async def test_a_page_of_labelled_jobs_begins_where_the_last_one_ended(store: Store) -> None:
    await store.submit([new_job(f"j{number}", labels={"x": "1"}) for number in range(5)])
    seen: list[str] = []
    before: tuple[float, str] | None = None
    while page := await store.jobs(JobQuery(labels={"x": "1"}, limit=2, before=before)):
        seen += [job.id for job in page]
        before = (page[-1].created_at, page[-1].id)
    assert seen == ["j4", "j3", "j2", "j1", "j0"]


async def test_a_job_brings_its_labels_along(store: Store) -> None:
    labels = {"team": "dàta", "quote": '"\\%'}
    claim = await started(store, labels=labels)
    assert claim.job.labels == labels
    job = await store.job("a")
    assert job is not None
    assert job.labels == labels
    await store.submit([new_job("b")])
    assert (await claim_one(store)).job.labels == {}


async def test_labels_are_deleted_with_their_job(store: Store, url: str) -> None:
    claim = await started(store, labels={"team": "data"})
    await store.write(write_of(claim, job=ends()))
    assert sql(url, "SELECT count(*) FROM label") == [(1,)]
    assert await store.prune(await store.now() + 1, 10) == 1
    assert sql(url, "SELECT count(*) FROM label") == [(0,)]


async def test_submitting_a_key_again_changes_no_labels(store: Store, url: str) -> None:
    await store.submit([new_job("a", key="k", fingerprint="f", labels={"team": "data"})])
    (again,) = await store.submit([new_job("b", key="k", fingerprint="f", labels={"x": "y"})])
    assert (again.id, again.created) == ("a", False)
    assert sql(url, "SELECT name, value FROM label") == [("team", "data")]
