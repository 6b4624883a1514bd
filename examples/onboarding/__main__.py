"""Submit a job and a plan, approve what the job asks, send its message, and wait for both."""

import contextlib

from examples.onboarding.gateway import GATEWAY
from examples.onboarding.jobs import app, onboard
from examples.onboarding.model import Customer
from perdure import JobState, Plan, PlanCall, Ref
from perdure.approvals import Person
from perdure.errors import IllegalTransition

ANN = Person(id="ann", tenant="acme", roles=frozenset({"approver"}))


async def main() -> None:
    customer = Customer("Kim", "kim@example.com")
    # A real customer gets three days.
    handle = await app.submit(
        onboard(customer, "1500ms"), tenant="acme", user="kim", key="onboard-42"
    )
    await handle.until(JobState.WAITING)
    for asked in await app.approvals(tenant="acme"):
        print(f"{asked.title}? {ANN.id} approves")
        await app.decide(asked, "approve", by=ANN, reason="the customer is known")
    with contextlib.suppress(IllegalTransition):  # the job has ended: this is not the first run
        await app.send(handle.id, "signed", "Kim", key="envelope 12")
    print(await handle.result(timeout="1h"))
    for mail in GATEWAY.sent.values():
        print(mail.text)

    plan = Plan(
        PlanCall("extract", source="a"),
        PlanCall("load", rows=Ref("extract.rows")),
        name="migration",
    )
    print(await (await app.submit(plan, tenant="acme")).result(), "rows loaded")


if __name__ == "__main__":
    app.run_sync(main)
