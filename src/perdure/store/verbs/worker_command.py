"""Commands to workers, and their answers."""

from typing import Any, NamedTuple

import msgspec

from perdure.base.errors import WorkerNotFound
from perdure.jobs.worker_command import WorkerAction, WorkerAnswer, WorkerCommand
from perdure.store.statements import Session

# Commands are kept for a while, for people who look into the store.
_KEEP = 86400.0
_MOST = 20  # that a worker takes at a time


class CommandState(NamedTuple):
    """What became of a command so far."""

    answer: WorkerAnswer | None
    is_alive: bool  # whether the worker is still registered


def ask_worker(session: Session, command: WorkerCommand, patience: float) -> None:
    """Store a command, which its worker finds soon, and ignores after `patience` seconds.

    Raises:
        WorkerNotFound: No such worker is registered.
    """
    if session.one("is_registered", owner=command.owner) is None:
        raise WorkerNotFound(command.owner)
    now = session.now()
    session.run("forget_commands", before=now - _KEEP, now=now)
    session.run(
        "ask_worker",
        id=command.id,
        owner=command.owner,
        action=command.action.value,
        data=msgspec.json.encode(command.data).decode(),
        asked_by=command.asked_by,
        now=now,
        expires_at=now + patience,
    )


def open_commands(session: Session, owner: str) -> list[WorkerCommand]:
    """Return the commands to a worker for whose answers somebody waits."""
    found = session.all("open_commands", owner=owner, now=session.now(), limit=_MOST)
    return [
        WorkerCommand(
            id=each[0],
            owner=each[1],
            action=WorkerAction(each[2]),
            data=msgspec.json.decode(each[3], type=dict[str, Any]),
            asked_by=each[4],
        )
        for each in found
    ]


def answer_command(session: Session, command_id: str, answer: WorkerAnswer) -> bool:
    """Store the answer to a command; return False if nobody waits for it any more."""
    text = msgspec.json.encode(answer).decode()
    return bool(session.run("answer_command", id=command_id, answer=text, now=session.now()))


def command_state(session: Session, command_id: str) -> CommandState:
    """Return the answer to a command, if there is one, and whether its worker is there."""
    found = session.one("command_answer", id=command_id)
    if found is None:
        return CommandState(None, is_alive=False)
    answer, alive = found
    given = None if answer is None else msgspec.json.decode(answer, type=WorkerAnswer)
    return CommandState(given, is_alive=alive is not None)


def withdraw_command(session: Session, command_id: str) -> None:
    """Delete a command that was not answered."""
    session.run("withdraw_command", id=command_id)
