"""Checkpoints of workflows of the Agent Framework."""

from perdure.store.statements import Session


def save_workflow_checkpoint(
    session: Session, tenant: str, workflow: str, id: str, at: float, data: bytes
) -> None:
    """Store a checkpoint, in the place of one with the same id."""
    given = {"tenant": tenant, "id": id, "workflow": workflow, "at": at, "data": data}
    session.run("save_workflow_checkpoint", **given)


def workflow_checkpoint(session: Session, tenant: str, id: str) -> bytes | None:
    """Return a checkpoint; None if there is none with this id."""
    found = session.all("workflow_checkpoint", tenant=tenant, id=id)
    return bytes(found[0][1]) if found else None


def workflow_checkpoints(session: Session, tenant: str, workflow: str) -> list[bytes]:
    """Return the checkpoints of a workflow, oldest first."""
    found = session.all("workflow_checkpoints", tenant=tenant, workflow=workflow)
    return [bytes(data) for _, data in found]


def newest_workflow_checkpoint(session: Session, tenant: str, workflow: str) -> bytes | None:
    """Return the newest checkpoint of a workflow; None if it has none."""
    found = session.all("newest_workflow_checkpoint", tenant=tenant, workflow=workflow)
    return bytes(found[0][1]) if found else None


def workflow_checkpoint_ids(session: Session, tenant: str, workflow: str) -> list[str]:
    """Return the ids of the checkpoints of a workflow, oldest first."""
    found = session.all("workflow_checkpoint_ids", tenant=tenant, workflow=workflow)
    return [id for (id,) in found]


def delete_workflow_checkpoint(session: Session, tenant: str, id: str) -> bool:
    """Delete a checkpoint; return whether there was one."""
    return bool(session.run("delete_workflow_checkpoint", tenant=tenant, id=id))
