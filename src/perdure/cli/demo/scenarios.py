"""The other scenarios: a mailing, an order that is undone, and a payment that needs approval.

* In the mailing, workers die between two mails and right after one; each mail is sent once.
* The order fails halfway, and is undone in reverse order although the worker dies during the undo.
* The payment waits for a person while no worker runs at all.
"""

from collections import Counter

from rich import box
from rich.table import Table
from rich.text import Text

from perdure.app import App
from perdure.base.errors import DecisionRefused, Permanent
from perdure.cli.demo.harness import Demo, Heading, Outcome, ServiceClient, count_steps
from perdure.engine.handle import Handle
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.approval import APPROVER, Person
from perdure.jobs.effect import Effect
from perdure.jobs.state import JobState
from perdure.process.timer import sleep

PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jule", "Kim", "Lea")
MAILS_PER_CHECKPOINT = 6
FIRST_KILL = 4  # mails after which the worker dies, before the first checkpoint

MAILING = Heading(
    "A mailing",
    "Each mail is an effect: a ledger records it before it is sent, and again when the\n"
    "mail server has answered. So the next worker knows which mails were sent.",
    {"mails": (len(PEOPLE), "mails")},
)


def add_mailing(app: App, client: ServiceClient) -> None:
    """Define its step and its job."""

    @app.step
    async def send_all(ctx: StepContext, people: list[str]) -> int:
        async for person in ctx.items(people, every=MAILS_PER_CHECKPOINT):
            await sleep(0.1 * client.pace)
            await client.effect(ctx, "mail", mail_to(person))
        return len(people)

    @app.job
    async def newsletter(people: list[str]) -> int:
        return await send_all(people)


def mail_to(person: str) -> str:
    """Return the request for a mail."""
    return f"mail to {person}"


MAILS = [mail_to(person) for person in PEOPLE]


class MailingScenario:
    """The second scenario."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo

    async def run(self) -> Outcome:
        """Kill the worker twice."""
        demo = self._demo
        with demo.display.scenario(MAILING):
            job = demo.app.find_job("newsletter")
            handle = await demo.app.submit(job(list(PEOPLE)))
            async with demo.worker() as worker:
                await demo.until(handle, worker, look=lambda: self._sent() >= FIRST_KILL)
                await demo.kill(worker, f"after {self._sent()} mails, before any checkpoint")
            async with demo.worker() as worker:
                await demo.held(handle, worker, MAILS[8])
                self._sent()
                await demo.kill(worker, f"the {MAILS[8]} is sent, but only the mail server knows")
            async with demo.worker() as worker:
                await demo.until(handle, worker, look=lambda: self._sent() < 0)
            self._sent()
        demo.display.draw(self._ledger(await handle.effects()))
        return await self._outcome(handle)

    def _sent(self) -> int:
        """Return how many mails are sent, and show the progress."""
        sent = sum(what in MAILS for what in self._demo.service.done)
        self._demo.show(Counter(mails=sent))
        return sent

    async def _outcome(self, handle: Handle[int]) -> Outcome:
        sent = [what for what in self._demo.service.done if what in MAILS]
        return Outcome(
            job=handle.id,
            steps=await count_steps(handle),
            lost=len(set(MAILS) - set(sent)) + (await handle.result("5s") != len(PEOPLE)),
            duplicates=len(sent) - len(set(sent)),
            more={"mails": len(sent), "mails_twice": len(sent) - len(set(sent))},
        )

    def _ledger(self, lines: list[Effect]) -> Table:
        """Return a table of the ledger beside what the mail server saw."""
        table = Table(box=box.ROUNDED)
        table.add_column("ledger")
        table.add_column("state", style="green")
        table.add_column("key", style="dim")
        table.add_column("mail server:\nrequests", justify="right")
        table.add_column("\nmails sent", justify="right", style="green")
        service = self._demo.service
        for line in lines:
            asked, sent = service.asked[line.target], service.done.count(line.target)
            table.add_row(line.target, str(line.state), line.key[:12], str(asked), str(sent))
        return table


# The order.

DONE = ("pay 40 USD", "reserve a lamp")
UNDONE = ("release the lamp", "refund 40 USD")
PROBLEM = "no courier delivers to this address"

ORDER = Heading(
    "An order that fails",
    "The payment is made and the stock reserved, then shipping fails. So the job\n"
    "undoes both, in reverse order. The worker is killed in the middle of the undo.",
)


def add_order(app: App, client: ServiceClient) -> None:
    """Define its steps, what undoes them, and its job."""

    @app.step
    async def pay(ctx: StepContext) -> str:
        return await client.effect(ctx, "payment", DONE[0])

    @pay.compensate
    async def refund(ctx: StepContext, _receipt: str | None) -> None:
        await client.effect(ctx, "payment", UNDONE[1])

    @app.step
    async def reserve(ctx: StepContext) -> str:
        return await client.effect(ctx, "stock", DONE[1])

    @reserve.compensate
    async def release(ctx: StepContext, _receipt: str | None) -> None:
        await client.effect(ctx, "stock", UNDONE[0])

    @app.step
    async def ship() -> None:
        raise Permanent(PROBLEM)

    @app.job
    async def place_order() -> None:
        await pay()
        await reserve()
        await ship()


class OrderScenario:
    """The third scenario."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo

    async def run(self) -> Outcome:
        """Kill the worker during the undo."""
        demo = self._demo
        with demo.display.scenario(ORDER):
            handle = await demo.app.submit(demo.app.find_job("place_order")())
            async with demo.worker() as worker:
                await demo.held(handle, worker, UNDONE[0])
                await demo.kill(
                    worker, f"in the middle of the undo, right after it requested {UNDONE[0]!r}"
                )
            async with demo.worker() as worker:
                await demo.until(handle, worker)
                demo.display.say(f"the job is {await handle.status()}")
        demo.display.draw(self._drawing())
        return await self._outcome(handle)

    def _done(self) -> list[str]:
        return [what for what in self._demo.service.done if what in (*DONE, *UNDONE)]

    def _drawing(self) -> Text:
        """Return the requests in the order in which they were done."""
        text = Text()
        for what in self._done():
            undo = what in UNDONE
            if what == UNDONE[0]:
                text.append(f"  ✗ ship: {PROBLEM}\n", "red")
            text.append(f"  {'↶' if undo else '✓'} {what}\n", "yellow" if undo else "green")
        text.rstrip()
        return text

    async def _outcome(self, handle: Handle[None]) -> Outcome:
        done = self._done()
        undone = await handle.status() is JobState.COMPENSATED
        return Outcome(
            job=handle.id,
            steps=await count_steps(handle),
            lost=count_lost(done) + (not undone),
            duplicates=len(done) - len(set(done)),
            more={"undone": [what for what in done if what in UNDONE]},
        )


def count_lost(done: list[str]) -> int:
    """Count what was not done; a wrong order counts too."""
    wanted = [*DONE, *UNDONE]
    missing = len(set(wanted) - set(done))
    return missing or int(sorted(set(done), key=done.index) != wanted)


# The payment.

USD = 900
ANN = Person(id="ann", tenant="default", roles=frozenset({APPROVER}))
KIM = Person(id="kim", tenant="default", roles=frozenset({APPROVER}))

PAYOUT = Heading(
    "An approval",
    "The step is tagged as financial, so a person must approve exactly this call.\n"
    "The job waits without a worker, and people can answer while no worker runs.",
)


def add_payout(app: App, client: ServiceClient) -> None:
    """Define its step and its job."""

    @app.step(tags={"financial"})
    async def transfer(ctx: StepContext, usd: int) -> str:
        return await client.effect(ctx, "payment", transfer_of(usd))

    @app.job
    async def pay_out(usd: int) -> str:
        return await transfer(usd)


def transfer_of(usd: int) -> str:
    """Return the request for a transfer."""
    return f"transfer {usd} USD"


class PayoutScenario:
    """The last scenario."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._refused = ""

    async def run(self) -> Outcome:
        """Kill the worker while the job waits, decide, and let another worker finish it."""
        demo = self._demo
        with demo.display.scenario(PAYOUT):
            job = demo.app.find_job("pay_out")
            handle: Handle[str] = await demo.app.submit(job(USD), user=KIM.id)
            async with demo.worker() as worker:
                await demo.until(handle, worker, JobState.WAITING)
                demo.display.say(f"kim's job is {await handle.status()}: it needs an approval")
                await demo.kill(worker, "no worker runs now, and the job keeps waiting")
            await self._decide()
            async with demo.worker() as worker:
                await demo.until(handle, worker)
                demo.display.say(f"the job is {await handle.status()}: {await handle.result('5s')}")
        return await self._outcome(handle)

    async def _decide(self) -> None:
        app, display = self._demo.app, self._demo.display
        (asked,) = await app.approvals()
        why = ", ".join(asked.reasons)
        question = f"{asked.title}: {asked.risk}, {why}; {asked.shown.decode()}"
        display.draw(Text(f"  ? {question}", "yellow"))
        try:
            await app.decide(asked, "approve", by=KIM, reason="it is mine")
        except DecisionRefused as refusal:
            self._refused = refusal.code
            display.say(f"kim approves her own job: refused ({refusal.code})")
        await app.decide(asked, "approve", by=ANN, reason="the invoice is right")
        display.say("ann approves: the invoice is right", "bold green")

    async def _outcome(self, handle: Handle[str]) -> Outcome:
        times = self._demo.service.done.count(transfer_of(USD))
        good = await handle.status() is JobState.COMPLETED and self._refused == "four eyes"
        return Outcome(
            job=handle.id,
            steps=await count_steps(handle),
            lost=int(times < 1) + (not good),
            duplicates=max(0, times - 1),
            more={"approved_by": ANN.id},
        )
