"""Give the agent a task; `python -m examples.agent closed` gives it one that it must undo.

Kill it at any moment, even with `kill -9`, and start it again: no recorded answer is asked for
twice, and nothing is paid or sent twice. A person approves the payment; here the program does.
"""

import sys

from examples.agent.loop import agent
from examples.agent.tools import app
from perdure import JobState, process
from perdure.approvals import Person

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))


async def main() -> None:
    shop = " from the closed shop" if "closed" in sys.argv else ""
    handle = await app.submit(agent(f"Buy Kim a lamp{shop}."), key=f"lamp{shop}", user="kim")
    process.spawn_linked(answer_for_ann)
    state = await handle.wait()
    print(await handle.result() if state is JobState.COMPLETED else f"the job is {state}")
    budget = await handle.budget()
    if budget is not None:
        print(f"{budget.spent.calls} calls of {budget.limits.calls}")


async def answer_for_ann() -> None:
    """Approve what is asked, as Ann would do in Slack, by mail or in the dashboard."""
    while True:
        for asked in await app.approvals():
            print(f"Ann approves: {asked.title} {asked.shown.decode()}", flush=True)
            await app.decide(asked, "approve", by=ANN)
        await process.sleep("50ms")


if __name__ == "__main__":
    app.run_sync(main)
