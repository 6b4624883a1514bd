"""Steps with a key of their own: what one gave is used again by the other jobs of the tenant."""

from typing import TYPE_CHECKING, Any

from perdure.base.codec import digest
from perdure.base.errors import DefinitionError, Permanent
from perdure.engine.parking import Later

if TYPE_CHECKING:
    from perdure.engine.step import StepOperation


def shared_key(operation: "StepOperation[Any]", key: object) -> str:
    """Make the key by which the result is found: never in another tenant, step or version.

    Raises:
        DefinitionError: The step's own key is no text.
    """
    step = operation.step
    if not isinstance(key, str) or not key:
        raise DefinitionError(f"idempotency_key of {step.name} gave {key!r}: it must give a text")
    return digest(operation.run.job.tenant, operation.entry.name, step.version, key)


async def result_under(operation: "StepOperation[Any]", key: str) -> bytes | None:
    """Give what a step has given under this key; None if none has, or if it was undone.

    Raises:
        Later: The job that has done it is being undone.
        Permanent: It was called with other arguments.
        Drift: Its result was of another type.
    """
    lent = await operation.run.ask(lambda store: store.entry_by_key(key))
    if lent is None or lent.entry.output is None:
        return None
    found, output = lent.entry, lent.entry.output
    if lent.being_undone and lent.job_id != operation.run.job.id:
        raise Later(lent.job_id, found.id, found.ended_at or 0.0)
    if found.input != operation.entry.input:
        raise Permanent(
            f"{operation.entry.id} has the idempotency_key of work that was done with other "
            "arguments: all that makes a difference must be in the key"
        )
    operation.step.unpack_result(output)
    return output
