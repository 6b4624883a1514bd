"""The older jobs of `intervene`: payments, sagas, families, questions, budgets and waits."""

import random
from dataclasses import dataclass
from typing import Any, Final

import perdure
from perdure import BudgetLimits, Partial, Retry
from perdure.app import App
from perdure.base.errors import Permanent, Refused
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import AnyStepContext, StepContext
from perdure.jobs.approval import ApprovalTerms, Person
from perdure.jobs.definition import Step
from perdure.jobs.effect import DidNotHappen, Happened, QueryAnswer, Unknown
from perdure.jobs.risk import Classifier, RiskFacts, RiskLevel
from perdure.notify.people import Contact, People
from tests.programmes.receiver import call

RETRY: Final = Retry(attempts=6, initial_delay="5ms", factor=2, jitter=0.5)
APPROVERS: Final = ("ann", "bob", "cyn")
OPERATOR: Final = "olga"  # gives commands, so she is none of those who may approve what then runs
LARGE: Final = 100  # USD from which two people must say yes
PRICE: Final = 0.5  # USD of a thought

# How a receiver may be called again, and what it does with a key: (in_doubt, can be asked, manner).
MANNERS: Final = {
    "replay": ("replay", False, "honours"),
    "strict": ("replay", False, "strict"),
    "query": ("ask", True, "honours"),
    "ask": ("ask", False, "ignores"),
}


def large_sums(facts: RiskFacts) -> tuple[RiskLevel, str] | None:
    """Let two people say yes to large sums."""
    usd = facts.arguments.get("usd", 0)
    return (RiskLevel.CRITICAL, f"it moves {usd} USD") if usd >= LARGE else None


def rules() -> Policy:
    """Say who may decide."""
    roles = frozenset({"approver"})
    people = [Person(id=name, tenant="default", roles=roles) for name in APPROVERS]
    return Policy(
        risk=Classifier().extended(large_sums),
        people=People([Contact(person=each) for each in people]),
        terms={RiskLevel.CRITICAL: ApprovalTerms(quorum=2)},
    )


@dataclass(frozen=True)
class Steps:
    """What all jobs are made of."""

    till: "Till"
    refund: Step[..., Any]
    charge: Step[..., Any]
    charge_and_compensate: Step[..., Any]
    charge_for_good: Step[..., Any]
    charge_once: Step[..., Any]
    charge_if_allowed: Step[..., Any]
    inquire: Step[..., Any]
    think: Step[..., Any]
    note: Step[..., Any]
    stumble: Step[..., Any]


def add_older_jobs(app: App, port: int) -> Steps:
    """Add them to an app; return the steps that they are made of."""
    steps = _steps(app, port)
    _payments(app, steps)
    _families(app, steps)
    _questions(app, steps)
    _others(app, steps)
    return steps


def dice(ctx: AnyStepContext, what: str) -> float:
    """Draw by chance, but the same for the same attempt."""
    return random.Random(f"{ctx.job_id}{ctx.step_id}{ctx.attempt}{what}").random()


class Till:
    """Where steps charge and refund."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def charge(self, ctx: StepContext, ref: str, usd: int, manner: str, **more: Any) -> Any:
        """Charge once; now and then fail right after it."""
        in_doubt, can_ask, conduct = MANNERS[manner]
        words = {"op": "charge", "ref": ref, "job": ctx.job_id, "usd": usd, "manner": conduct}
        options: Any = {"in_doubt": in_doubt, **more}
        if can_ask:
            options |= {"query": self._query, "settle_after": "200ms"}
        found = await ctx.effect(
            "charge", lambda key: self._call(key=key, **words), target=ref, **options
        )
        if dice(ctx, ref) < 0.1:
            raise RuntimeError("something else went wrong")
        return found

    async def give_back(self, ctx: StepContext, ref: str) -> None:
        """Refund all that was charged for a reference."""
        words = {"op": "refund", "ref": ref, "job": ctx.job_id}
        await ctx.effect(
            "refund",
            lambda key: self._call(key=key, **words),
            target=ref,
            in_doubt="replay",
        )

    async def _call(self, **words: Any) -> Any:
        answer = await call(self._port, **words)
        if "refused" in answer:
            raise Refused(answer["refused"])
        return answer

    async def _query(self, key: str) -> QueryAnswer:
        answer = await call(self._port, op="query", key=key)
        if "happened" in answer:
            return Happened(answer["happened"])
        return Unknown() if "unknown" in answer else DidNotHappen()


def _steps(app: App, port: int) -> Steps:
    till = Till(port)

    @app.step(retry=RETRY)
    async def refund(ctx: StepContext, result: Any, ref: str) -> None:
        await till.give_back(ctx, ref)

    return Steps(till, refund, *_charges(app, till, refund), *_asking(app), *_quiet(app, port))


def _charges(app: App, till: Till, refund: Step[..., Any]) -> tuple[Step[..., Any], ...]:
    @app.step(retry=RETRY)
    async def charge(ctx: StepContext, usd: int, manner: str) -> Any:
        ref = f"{ctx.job_id}/{ctx.step_id}"
        return await till.charge(ctx, ref, usd, manner, undo=(refund, {"ref": ref}))

    @app.step(retry=RETRY)
    async def charge_and_compensate(ctx: StepContext, usd: int, manner: str, number: int) -> Any:
        return await till.charge(ctx, f"{ctx.job_id}/ref{number}", usd, manner)

    @charge_and_compensate.compensate(retry=RETRY)
    async def compensate(ctx: StepContext, usd: int, manner: str, number: int, output: Any) -> None:
        await till.give_back(ctx, f"{ctx.job_id}/ref{number}")

    @app.step(retry=RETRY)
    async def charge_for_good(ctx: StepContext, usd: int, manner: str) -> Any:
        return await till.charge(ctx, f"{ctx.job_id}/{ctx.step_id}", usd, manner)

    @app.step(retry=RETRY)
    async def charge_once(ctx: StepContext, order: str, usd: int, manner: str) -> Any:
        undo = (refund, {"ref": order})
        return await till.charge(ctx, order, usd, manner, key=order, undo=undo)

    @app.step(retry=RETRY, tags={"financial"})
    async def charge_if_allowed(ctx: StepContext, usd: int) -> Any:
        ref = f"{ctx.job_id}/{ctx.step_id}"
        return await till.charge(ctx, ref, usd, "replay", undo=(refund, {"ref": ref}))

    return charge, charge_and_compensate, charge_for_good, charge_once, charge_if_allowed


def _asking(app: App) -> tuple[Step[..., Any], ...]:
    @app.step(retry=RETRY)
    async def inquire(ctx: StepContext, questions: int) -> int:
        for number in range(ctx.load_checkpoint() or 0, questions):
            if not await ctx.approve("Go on?"):
                raise Permanent("somebody said no")
            await ctx.save_checkpoint(number + 1)
        return questions

    return (inquire,)


def _quiet(app: App, port: int) -> tuple[Step[..., Any], ...]:
    @app.step(retry=RETRY)
    async def think(ctx: StepContext, thoughts: int) -> Any:
        done = ctx.load_checkpoint() or 0
        async with ctx.spend(usd=2 * PRICE) as spent:
            await call(port, op="spend", job=ctx.job_id, usd=PRICE)
            await spent.settle(usd=PRICE)
            if dice(ctx, f"think {done}") < 0.3:
                raise RuntimeError("nothing came to mind")
        return thoughts if done + 1 >= thoughts else Partial(done + 1, done + 1)

    @app.step(retry=RETRY)
    async def note(ctx: StepContext, text: str) -> str:
        await perdure.process.sleep(0.02 * dice(ctx, text))
        return text

    @app.step(retry=Retry(attempts=1))
    async def stumble(ctx: StepContext, milliseconds: int) -> None:
        await perdure.process.sleep(milliseconds / 1000)
        raise Permanent("this was not to be")

    return think, note, stumble


def _payments(app: App, steps: Steps) -> None:  # noqa: C901 - small functions
    async def pay_all(ctx: JobContext, count: int, manner: str) -> None:
        for number in range(count):
            if number % 2:
                await steps.charge_and_compensate(1, manner, number)
            else:
                await steps.charge(1, manner)

    @app.job(on_cancel="compensate", on_outage="fail")
    async def pay(ctx: JobContext, count: int, manner: str) -> None:
        await pay_all(ctx, count, manner)
        await steps.note("paid")

    @app.job(on_cancel="abandon", on_outage="fail")
    async def pay_and_leave(ctx: JobContext, count: int, manner: str) -> None:
        await pay_all(ctx, count, manner)

    @app.job(on_cancel="compensate", on_outage="fail")
    async def saga(ctx: JobContext, count: int, manner: str) -> None:
        await pay_all(ctx, count, manner)
        await steps.stumble(5)

    @app.job(on_cancel="compensate", on_outage="fail")
    async def half_a_saga(ctx: JobContext, manner: str) -> None:
        """One of the two payments cannot be undone: this must never be COMPENSATED."""
        await steps.charge(1, manner)
        await steps.charge_for_good(1, manner)
        await steps.stumble(5)

    @app.job(on_cancel="compensate", on_outage="fail")
    async def gathered(ctx: JobContext, count: int, manner: str, fails: bool) -> None:
        await ctx.gather(
            *(steps.charge(1, manner) for _ in range(count)),
            *(steps.charge_and_compensate(1, manner, each) for each in range(count)),
        )
        if fails:
            await steps.stumble(5)

    @app.job(on_cancel="compensate", on_outage="fail")
    async def keyed(ctx: JobContext, order: str, count: int, manner: str, fails: bool) -> None:
        paid = await ctx.gather(*(steps.charge_once(order, 1, manner) for _ in range(count)))
        if any(each != paid[0] for each in paid):
            raise Permanent(f"one key, different results: {paid}")
        if fails:
            await steps.stumble(5)


def _families(app: App, steps: Steps) -> None:
    @app.job(on_cancel="compensate", on_outage="fail")
    async def family(ctx: JobContext, depth: int, manner: str, races: int, fails: bool) -> None:
        """Each has two children, down to the depth; `races`: it fails while they are at work."""
        await steps.charge(1, manner)
        if depth:
            offspring = [ctx.child(family(depth - 1, manner, 0, False)) for _ in range(2)]
            if races:
                for each in offspring:
                    each.begin()
                await steps.stumble(races)
            await ctx.gather(*offspring)
        await steps.charge_and_compensate(1, manner, 0)
        if fails:
            await steps.stumble(5)


def _questions(app: App, steps: Steps) -> None:
    @app.job(on_cancel="compensate", on_outage="fail")
    async def asks(ctx: JobContext, usd: int, fails: bool) -> None:
        await steps.charge_if_allowed(usd)
        if fails:
            await steps.stumble(5)

    @app.job(on_cancel="compensate", on_outage="fail")
    async def asks_first(ctx: JobContext, usd: int) -> None:
        await ctx.approve("Charge?", details={"usd": usd})
        await steps.charge_if_allowed(usd)

    @app.job(on_cancel="compensate", on_outage="fail")
    async def inquires(ctx: JobContext, questions: int) -> int:
        asked = await steps.inquire(questions)
        await steps.charge(1, "replay")
        return asked


def _others(app: App, steps: Steps) -> None:
    @app.job(on_cancel="compensate", on_outage="fail", budget=BudgetLimits(usd=4))
    async def thinks(ctx: JobContext, thoughts: int, depth: int) -> None:
        if depth:
            await ctx.child(thinks(thoughts, depth - 1))
        await ctx.gather(*(steps.think(thoughts) for _ in range(2)))
        await steps.charge(1, "replay")

    @app.job(on_cancel="compensate", on_outage="fail")
    async def waits(ctx: JobContext, manner: str) -> Any:
        await steps.charge(1, manner)
        await ctx.sleep("80ms")
        said = await ctx.receive("go")
        await steps.note(str(said))
        await steps.charge(1, manner)
        return said
