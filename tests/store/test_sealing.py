"""Every column is either encrypted, or plain for a reason."""

import sqlite3
from contextlib import closing

from perdure.store.sealing import TABLES, all_statements, table_of
from perdure.store.sqlite.schema import migrate

# What SQL finds, orders or compares, or what holds nothing of people: names, keys, ids, hashes,
# states. A new column of texts belongs here or into `TABLES`, and into docs/jobs/encryption.md.
PLAIN = {
    "answer": "tenant principal key taker needs",
    "approval": "id tenant job_id step state action_hash",
    "audit": "tenant line hash",
    "budget": "root_id data",
    "definitions": "digest data",
    "effect": "job_id tenant key step part kind state in_doubt proof business",
    "error_mark": "tenant fingerprint state marked_by",
    "event": "job_id type actor",
    "fact": "name value",
    "job": "id tenant user name version state queue request paused_from key parent root"
    " forked_from budget_of labels",
    "journal": "job_id id kind name state key",
    "label": "job_id name value",
    "langgraph_checkpoint": "tenant thread ns id parent run root versions deltas",
    "langgraph_item": "tenant namespace key",
    "langgraph_piece": "tenant thread digest",
    "langgraph_value": "tenant thread ns channel version",
    "langgraph_write": "tenant thread ns checkpoint task path channel",
    "lease": "job_id tenant queue kind owner",
    "link": "id approval_id data",
    "message": "job_id topic key",
    "notice": "id job_id approval_id channel recipient kind state",
    "output": "job_id topic step",
    "output_topic": "job_id topic",
    "pad": "filler",
    "payload": "job_id digest",
    "perdure_migration": "name checksum",
    "plan_kind": "kind steps",
    "queue": "claimed name",
    "requester": "job_id person",
    "saved_view": "tenant name query saved_by",
    "schedule": "tenant name cron timezone catch_up",
    "session": "hash tenant person token_id data",
    "sign_in_link": "hash data",
    "token": "id hash tenant principal created_by makers data",
    "trace": "job_id parent last",
    "turn": "queue tenant",
    "worker": "owner info definitions",
    "worker_command": "id owner action asked_by",
    "workflow_checkpoint": "tenant id workflow",
}


def test_every_column_of_texts_is_encrypted_or_listed_as_plain() -> None:
    found: dict[str, set[str]] = {}
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        migrate(database)
        tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        for (table,) in tables:
            columns = database.execute(f"PRAGMA table_info({table})").fetchall()
            found[table] = {each[1] for each in columns if each[2] in ("TEXT", "BLOB")}
    sealed = {table: set(each.columns) for table, each in TABLES.items()}
    names = {*PLAIN, *sealed}
    assert found == {name: {*PLAIN.get(name, "").split(), *sealed.get(name, ())} for name in names}


def test_a_statement_is_of_the_table_that_it_writes_or_reads() -> None:
    texts = all_statements("postgres")
    wanted = {
        "insert_job": "job",
        "command_answer": "worker_command",
        "end_job": "job",
        "claim_unlimited": "job",
        "find_labelled_jobs": "job",
        "take_notices": "notice",
        "link": "approval",
        "graph_values": "langgraph_value",
        "budget": "",
        "sealed_job": "",
        "reseal_job": "",
    }
    assert {name: table_of(name, texts[name]) for name in wanted} == wanted
