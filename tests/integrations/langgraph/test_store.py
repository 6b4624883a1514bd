"""Long-term memory: the same operations do the same here and in LangGraph's own store."""

# LangGraph leaves parts of its types open.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import random
from typing import Any, TypedDict

import pytest

from perdure import Client, Encryption
from perdure.base.encryption import generate_key
from perdure.cli.keys import rotate_keys
from perdure.errors import EncryptionError
from perdure.store.open import open_store
from tests.support.store import sql

pytest.importorskip("langgraph.checkpoint.conformance")

from langgraph.graph import START, StateGraph
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchItem,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from perdure.integrations.langgraph import PerdureStore
from tests.integrations.langgraph.test_encrypted_threads import WORD, spellings, stored

pytestmark = pytest.mark.once

MANY = 10_000


def told(result: Any) -> Any:
    """Return what a result says, without times."""
    if isinstance(result, list):
        return [told(each) for each in result]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(result, SearchItem):
        score = None if result.score is None else round(result.score, 4)
        return result.namespace, result.key, result.value, score
    return (result.namespace, result.key, result.value) if isinstance(result, Item) else result


async def same(ours: BaseStore, theirs: BaseStore, *ops: Op) -> list[Any]:
    """Do the same in both; items that a search finds may come in another order."""
    mine, official = told(await ours.abatch(ops)), told(await theirs.abatch(ops))
    for op, found, wanted in zip(ops, mine, official, strict=True):
        if isinstance(op, SearchOp) and not op.query:
            found.sort(key=repr)
            wanted.sort(key=repr)
        assert found == wanted, op
    return mine


# The same as LangGraph's own


def some_op(draw: random.Random) -> Op:
    namespace = tuple(draw.choices("ab", k=draw.randint(1, 3)))
    key = draw.choice("xyz")
    value = {"n": draw.randint(0, 3), "who": {"name": draw.choice("kl")}}
    wanted = draw.choice(
        [None, {"n": 1}, {"n": {"$gte": 1, "$lt": 3}}, {"who": {"name": {"$ne": "k"}}}]
    )
    ops: list[Op] = [
        PutOp(namespace, key, value),
        PutOp(namespace, key, draw.choice([None, value])),
        GetOp(namespace, key),
        SearchOp(namespace[:-1], filter=wanted, limit=MANY),
    ]
    return draw.choice(ops)


async def test_batches_of_operations_return_what_they_do_in_memory(client: Client) -> None:
    draw, ours, theirs = random.Random(7), PerdureStore(client), InMemoryStore()
    for _ in range(60):
        await same(ours, theirs, *(some_op(draw) for _ in range(draw.randint(1, 5))))
    assert len((await same(ours, theirs, SearchOp((), limit=MANY)))[0]) > 5


FILTERS = [
    {"n": 2},
    {"n": 2.0},
    {"n": None},
    {"tags": ["a", "b"]},
    {"tags": ["b", "a"]},
    {"who": {"name": "Kim"}},
    {"who": {"name": "Kim", "age": {"$gt": 30}}},
    {"n": {"$eq": 2}},
    {"n": {"$ne": 2}},
    {"who": {"age": {"$gte": 30, "$lte": 31}}},
    {"n": {"$ne": 9}, "who": {"name": {"$eq": "Lea"}}},
    {"who": "Kim"},
    {},
]


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
async def test_a_filter_finds_what_it_finds_in_memory(
    client: Client, wanted: dict[str, Any]
) -> None:
    ours, theirs = PerdureStore(client), InMemoryStore()
    values: list[dict[str, Any]] = [
        {"n": 1, "tags": ["a", "b"], "who": {"name": "Kim", "age": 30}},
        {"n": 2, "tags": [], "who": {"name": "Kim", "age": 31}},
        {"n": None, "who": {"name": "Lea", "age": 32}},
    ]
    puts = [PutOp(("x",), str(number), value) for number, value in enumerate(values)]
    await same(ours, theirs, *puts)
    await same(ours, theirs, SearchOp(("x",), filter=wanted))


NAMESPACES = [("a",), ("a", "b"), ("a", "b", "c"), ("ab", "c"), ("x", "b", "c"), ("x", "y", "b")]
LISTS = [
    ListNamespacesOp(),
    ListNamespacesOp(max_depth=1),
    ListNamespacesOp(max_depth=2, limit=2, offset=1),
    ListNamespacesOp((MatchCondition("prefix", ("a",)),)),
    ListNamespacesOp((MatchCondition("prefix", ("*", "b")),)),
    ListNamespacesOp((MatchCondition("prefix", ("x", "*", "c")),)),
    ListNamespacesOp((MatchCondition("suffix", ("b",)),)),
    ListNamespacesOp((MatchCondition("suffix", ("b", "*")),), max_depth=2),
    ListNamespacesOp((MatchCondition("prefix", ("a",)), MatchCondition("suffix", ("c",)))),
    ListNamespacesOp((MatchCondition("prefix", ("nobody",)),)),
]


async def test_namespaces_are_listed_as_in_memory(client: Client) -> None:
    ours, theirs = PerdureStore(client), InMemoryStore()
    await same(ours, theirs, *(PutOp(each, "k", {}) for each in NAMESPACES))
    await same(ours, theirs, *LISTS)
    for each in NAMESPACES:
        await same(ours, theirs, SearchOp(each, limit=MANY))


async def letters(texts: list[str]) -> list[list[float]]:
    """Embed texts by how often they have each of some letters."""
    return [[float(text.count(letter)) for letter in "abcde"] for text in texts]


INDEX: Any = {"dims": 5, "embed": letters}


@pytest.mark.parametrize("fields", [None, ["text"], ["tags[*]", "text"]], ids=str)
async def test_a_search_by_meaning_ranks_as_in_memory(
    client: Client, fields: list[str] | None
) -> None:
    index = INDEX if fields is None else INDEX | {"fields": fields}
    ours, theirs = PerdureStore(client, index=index), InMemoryStore(index=index)
    puts = [
        PutOp(("d",), "1", {"text": "aaab", "tags": ["c", "ee"]}),
        PutOp(("d",), "2", {"text": "abbb", "tags": ["d"]}),
        PutOp(("d", "e"), "3", {"text": "cab", "tags": []}),
        PutOp(("d",), "4", {"text": "aab"}, index=False),
        PutOp(("d",), "5", {"other": "eeed"}, index=["other"]),
    ]
    await same(ours, theirs, *puts)
    found = await same(ours, theirs, SearchOp(("d",), query="aab"))
    assert [each[1] for each in found[0]][-1] == "4"  # it has no vector
    await same(ours, theirs, SearchOp(("d",), query="b", limit=2, offset=1))
    await same(ours, theirs, SearchOp(("d",), query="e", filter={"text": {"$ne": "aaab"}}))


# What LangGraph's own store does otherwise, or not at all


async def test_searches_return_what_changed_last_first_page_by_page(client: Client) -> None:
    store = PerdureStore(client)
    for number in range(5):
        await store.aput(("x",), str(number), {"n": number})
    await store.aput(("x",), "1", {"n": 1})
    first = await store.asearch(("x",), limit=2)
    second = await store.asearch(("x",), limit=2, offset=2)
    assert [each.key for each in (*first, *second)] == ["1", "4", "3", "2"]
    filtered = await store.asearch(("x",), filter={"n": {"$gt": 0}}, limit=3)
    assert [each.key for each in filtered] == ["1", "4", "3"]


async def test_an_item_keeps_the_time_of_its_creation(client: Client) -> None:
    store = PerdureStore(client)
    await store.aput(("x",), "k", {"n": 1})
    before = await store.aget(("x",), "k")
    await store.aput(("x",), "k", {"n": 2})
    after = await store.aget(("x",), "k")
    assert before is not None
    assert after is not None
    assert after.value == {"n": 2}
    assert after.created_at == before.created_at
    assert after.updated_at > before.updated_at


async def test_a_filter_looks_at_all_items_however_many_there_are(client: Client) -> None:
    store = PerdureStore(client)
    await store.abatch([PutOp(("x", str(n % 3)), str(n), {"n": n}) for n in range(450)])
    found = await store.asearch(("x",), filter={"n": {"$gte": 10}}, limit=MANY)
    assert sorted(each.value["n"] for each in found) == list(range(10, 450))


async def test_any_label_and_key_and_text_comes_back(client: Client) -> None:
    store = PerdureStore(client)
    odd = ('a"b', "c,d", "\\", "ü\u2028", "[")
    await store.abatch([PutOp(odd, "\u00e4 \n'", {"\x00": "\ud800 \x00"})])
    item = await store.aget(odd, "\u00e4 \n'")
    assert item is not None
    assert (item.namespace, item.value) == (odd, {"\x00": "\ud800 \x00"})
    assert [each.namespace for each in await store.asearch(odd[:3])] == [odd]
    with pytest.raises(InvalidNamespaceError):
        await store.aput((), "k", {})


async def test_what_cannot_be_stored_or_asked_refuses_the_batch(client: Client) -> None:
    store = PerdureStore(client)
    with pytest.raises(TypeError, match=r"'bad' in \('x',\) cannot be stored as JSON"):
        await store.abatch([PutOp(("x",), "good", {}), PutOp(("x",), "bad", {"n": object()})])
    with pytest.raises(TypeError, match="as JSON"):
        await store.aput(("x",), "k", {"n": float("nan")})
    assert await store.asearch(("x",)) == []
    await store.aput(("x",), "k", {"n": "b"})
    with pytest.raises(ValueError, match=r"no operator \$like"):
        await store.asearch(("x",), filter={"n": {"$like": "b"}})
    assert [each.key for each in await store.asearch((), filter={"n": {"$gt": "a"}})] == ["k"]
    assert await store.asearch((), filter={"n": {"$gt": 1}}) == []


async def test_items_of_other_tenants_are_not_seen(client: Client) -> None:
    ours, others = PerdureStore(client), PerdureStore(client, tenant="acme")
    await others.aput(("x",), "k", {"n": 1}, ttl=1)
    assert await ours.aget(("x",), "k") is None
    assert await ours.asearch(()) == []
    assert await ours.asearch((), filter={"n": 1}) == []
    assert await ours.alist_namespaces() == []
    await ours.adelete(("x",), "k")
    assert await others.aget(("x",), "k") is not None


# Time to live


async def test_an_item_whose_time_is_over_is_not_seen_and_then_deleted(
    client: Client, url: str
) -> None:
    store = PerdureStore(client, ttl={"default_ttl": 10})
    await store.aput(("x",), "k", {"n": 1})
    await store.aput(("y",), "stays", {"n": 1}, ttl=None)
    assert len(await store.asearch(())) == 2
    sql(url, "UPDATE langgraph_item SET expires_at = 1 WHERE expires_at IS NOT NULL")
    assert await store.aget(("x",), "k") is None
    assert [each.key for each in await store.asearch(())] == ["stays"]
    assert [each.key for each in await store.asearch((), filter={"n": 1})] == ["stays"]
    assert await store.alist_namespaces() == [("y",)]
    assert await store.asweep_ttl() == 1
    assert await store.asweep_ttl() == 0
    await store.aput(("x",), "k", {}, ttl=0.5)
    sql(url, "UPDATE langgraph_item SET expires_at = 1 WHERE expires_at IS NOT NULL")
    await store.aput(("y",), "more", {}, ttl=None)
    assert sorted(sql(url, "SELECT key FROM langgraph_item")) == [("more",), ("stays",)]


async def test_reading_an_item_lets_its_time_begin_anew_unless_told_otherwise(
    client: Client, url: str
) -> None:
    store = PerdureStore(client)
    left = "SELECT expires_at - updated_at > 3599 FROM langgraph_item"

    async def is_renewed(**options: Any) -> list[bool]:
        found: list[bool] = []
        for search in (False, True):
            sql(url, "UPDATE langgraph_item SET expires_at = updated_at + 3000")
            if search:
                await store.asearch(("x",), **options)
            else:
                await store.aget(("x",), "k", **options)
            found.append(bool(sql(url, left)[0][0]))
        return found

    await store.aput(("x",), "k", {}, ttl=60)
    assert await is_renewed() == [True, True]
    assert await is_renewed(refresh_ttl=False) == [False, False]
    store.ttl_config = {"refresh_on_read": False}
    assert await is_renewed() == [False, False]


# In programs


class Said(TypedDict):
    said: str


def test_a_graph_of_plain_code_has_the_store(url: str) -> None:
    client = Client(url)
    with client.sync:
        store = PerdureStore(client)

        def note(state: Said, *, store: BaseStore) -> Said:
            store.put(("users", "kim"), "last", {"said": state["said"]})
            found = store.get(("users", "kim"), "last")
            return {"said": "nothing" if found is None else found.value["said"] + "!"}

        graph: Any = StateGraph(Said).add_node(note).add_edge(START, "note").compile(store=store)
        assert graph.invoke({"said": "hello"}) == {"said": "hello!"}
        assert [each.value for each in store.search(("users",))] == [{"said": "hello"}]
        assert store.sweep_ttl() == 0


@pytest.mark.parametrize("encrypted", [False, True])
async def test_items_are_encrypted_and_rotated(url: str, *, encrypted: bool) -> None:
    old, new = generate_key(), generate_key()
    async with Client(url, encryption=Encryption([old]) if encrypted else None) as client:
        store = PerdureStore(client, index=INDEX)
        await store.aput(("x",), "k", {"text": WORD})
        assert any(each in stored(url) for each in spellings()) is not encrypted
    opened = open_store(url, encryption=Encryption([new, old]))
    await opened.open()
    await rotate_keys(opened, 50)
    await opened.close()
    async with Client(url, encryption=Encryption([new])) as client:
        store = PerdureStore(client, index=INDEX)
        (found,) = await store.asearch(("x",), query="a")
        assert found.value == {"text": WORD}
        assert found.score is not None
    if encrypted:
        async with Client(url) as client:
            with pytest.raises(EncryptionError):
                await PerdureStore(client).aget(("x",), "k")
