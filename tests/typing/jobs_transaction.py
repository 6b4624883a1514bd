"""A transaction keeps the types of its function, without the connection and the context."""

import sqlite3
from typing import assert_type

from perdure import App, Step, StepContext, transaction

app = App("sqlite:///x.db")


@app.transaction("sqlite:///y.db")
def pay(db: sqlite3.Connection, owner: str, cents: int) -> int:
    return cents


@app.transaction("postgresql://host/y", timeout="3s")
async def look(ctx: StepContext, db: object, owner: str) -> str:
    return owner


@app.step(timeout="3s")
@transaction("sqlite:///y.db")
def plain(db: sqlite3.Connection, owner: str) -> list[str]:
    return [owner]


@pay.compensate
@transaction("sqlite:///y.db")
def refund(db: sqlite3.Connection, owner: str, cents: int, output: int | None) -> None: ...


def results() -> None:
    assert_type(pay.unpack_result(b"1"), int)
    assert_type(look.unpack_result(b'""'), str)
    assert_type(plain.unpack_result(b"[]"), list[str])


def parameters() -> None:
    _first: Step[[str, int], int] = pay
    _second: Step[[str], str] = look
    _third: Step[[str], list[str]] = plain
