"""Jobs that cannot go on before a person has looked at them: parked, and people alerted."""

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from perdure.base.codec import digest, encode
from perdure.base.errors import EffectInDoubt
from perdure.engine.leaving import Leaving
from perdure.engine.verdict import Parked
from perdure.jobs.deeds import Deeds
from perdure.jobs.effect import Effect
from perdure.jobs.failure import failure_of
from perdure.jobs.model import Event
from perdure.jobs.outbox import Notice, NoticeKind

if TYPE_CHECKING:
    from perdure.engine.run import Run
    from perdure.engine.step import StepOperation


# How soon, and how late at most, to look again for what became of another job's effect.
_SOON, _LATE = 0.1, 30.0


class Held(Leaving):
    """Leaves a step that cannot go on before a person has said what became of an effect."""

    def __init__(self, effect: Effect, why: str) -> None:
        super().__init__(f"the {effect.kind} to {effect.target}: {why}")
        self.effect = effect
        self.why = why

    async def settle(self, operation: "StepOperation[Any]") -> None:
        """Write that the effect is in doubt, alert people, and let the run end."""
        run, effect, why = operation.run, self.effect, self.why
        told = {"step": operation.entry.id, "kind": effect.kind, "target": effect.target}
        event = Event(type="effect.in_doubt", data={**told, "why": why}, actor=run.node.owner)
        deeds = Deeds(notices=alerts(run, NoticeKind.IN_DOUBT, effect.key, str(self)))
        await run.write(operation.put_back(), events=(event,), deeds=deeds)
        failure = failure_of(EffectInDoubt(_sentence(effect, why)))
        run.end(Parked(failure, _choices(effect), told=True))


class Later(Leaving):
    """Leaves a step until another job has settled or undone what has the same key."""

    def __init__(self, job_id: str, what: str, since: float) -> None:
        super().__init__(f"job {job_id} must first settle {what}, which has the same key")
        self._since = since

    @classmethod
    def for_effect(cls, effect: Effect) -> "Later":
        """Wait for an effect under the same business key."""
        return cls(effect.job_id, f"the {effect.kind} to {effect.target}", effect.called_at)

    async def settle(self, operation: "StepOperation[Any]") -> None:
        """Begin the step again in a while: the longer it takes already, the later."""
        now = operation.run.now()
        pause = min(max((now - self._since) / 2, _SOON), _LATE)
        await _begin_again(operation, now + pause, str(self))


class Settling(Leaving):
    """Leaves a step until no call can be under way to the receiver, which is asked then."""

    def __init__(self, effect: Effect, at: float) -> None:
        what = f"the {effect.kind} to {effect.target}"
        super().__init__(f"the last call of {what} may still be under way; the receiver is asked")
        self.at = at

    async def settle(self, operation: "StepOperation[Any]") -> None:
        """Begin the step again then."""
        await _begin_again(operation, self.at, str(self))


async def _begin_again(operation: "StepOperation[Any]", at: float, why: str) -> None:
    error = failure_of(EffectInDoubt(why)).pack()
    operation.entry = replace(operation.put_back(), wake_at=at, error=error)
    await operation.run.write(operation.entry)
    operation.again = True


def _sentence(effect: Effect, why: str) -> str:
    return (
        f"nobody knows whether the {effect.kind} to {effect.target} happened: {why}. "
        "Find out, then say that it happened, that it did not, or that all is to be undone: "
        "`perdure effects resolve`, or `handle.resolve`"
    )


def _choices(effect: Effect) -> bytes:
    asked = {
        "kind": "effect",
        "key": effect.key,
        "effect": effect.kind,
        "target": effect.target,
        "choices": ["happened", "did not happen", "compensate"],
    }
    return encode([asked])


def parking_deeds(run: "Run", verdict: Parked, deeds: Deeds | None) -> Deeds | None:
    """Add the alert that a job is parked, unless people have been told why already."""
    if verdict.told:
        return deeds
    deeds = deeds or Deeds()
    # A job that is resumed and parked again is told of again.
    told = alerts(run, NoticeKind.STUCK, str(run.epoch), verdict.failure.summary())
    return replace(deeds, notices=(*deeds.notices, *told))


def alerts(run: "Run", kind: NoticeKind, about: str, text: str) -> tuple[Notice, ...]:
    """Make an alert for every channel."""
    return tuple(
        Notice(
            id=digest("alert", run.job.id, kind.value, about, channel.name)[:32],
            tenant=run.job.tenant,
            kind=kind,
            job_id=run.job.id,
            channel=channel.name,
            due_at=run.now(),
            data=encode({"text": text}),
        )
        for channel in run.node.rules.channels
    )
