"""Threads of LangGraph in an encrypted store."""

# LangGraph leaves parts of its types open.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from pathlib import Path
from typing import Any

import pytest

from perdure import Client, Encryption
from perdure.base.encryption import generate_key
from perdure.base.errors import EncryptionError
from perdure.cli.keys import rotate_keys
from perdure.store.open import open_store
from tests.engine.test_canary import everything_in

pytest.importorskip("langgraph.checkpoint.conformance")

from langchain_core.messages import HumanMessage

from perdure.integrations.langgraph import PerdureSaver
from tests.integrations.langgraph.test_saver import LONG, talking, thread

pytestmark = pytest.mark.once

WORD = "CANARY-of-a-thread"
OLD, NEW = generate_key(), generate_key()


def stored(url: str) -> bytes:
    if not url.startswith("sqlite"):
        return everything_in(url).replace("\\x", "").encode()
    folder = Path(url.removeprefix("sqlite:///")).parent
    return b"".join(each.read_bytes() for each in folder.iterdir())


def spellings() -> list[bytes]:
    return [WORD.encode(), WORD.encode().hex().encode()]


async def read(url: str, key: str) -> list[Any]:
    async with Client(url, encryption=Encryption([key])) as client:
        state = await talking(PerdureSaver(client), LONG).aget_state(thread("b"))
        return [each.content for each in state.values["messages"]]


@pytest.mark.parametrize("keys", [None, Encryption([OLD])])
async def test_a_thread_is_encrypted_copied_and_rotated(url: str, keys: Encryption | None) -> None:
    async with Client(url, encryption=keys) as client:
        saver = PerdureSaver(client)
        hello = {"messages": [HumanMessage(WORD, id="hello")]}
        await talking(saver, LONG).ainvoke(hello, thread("a"))
        await saver.acopy_thread("a", "b")
        await saver.adelete_thread("a")
        assert any(each in stored(url) for each in spellings()) == (keys is None)
    store = open_store(url, encryption=Encryption([NEW, OLD]))
    await store.open()
    report = await rotate_keys(store, 50)
    await store.close()
    assert (report.left, report.others) == ({}, {})
    assert (await read(url, NEW))[0] == WORD
    assert len(await read(url, NEW)) == LONG
    with pytest.raises(EncryptionError):
        await read(url, OLD)
