"""A migration of a thousand customers that may be killed at any moment, and is then run again.

Each run goes on where the last one was: finished steps are not done again,
and the step in which it died goes on from its checkpoint.
"""

import os

import perdure
from perdure import App, JobContext, StepContext

PAGES = 10
ON_A_PAGE = 100

# `PACE=0` does not pretend that the work is slow.
PACE = float(os.environ.get("PACE", "1"))

app = App(os.environ.get("PERDURE_URL", "sqlite:///long_migration.db"))


@app.step
async def extract(ctx: StepContext, page: int) -> list[str]:
    await perdure.process.sleep(0.2 * PACE)
    print(f"extracted page {page}")
    return [f"customer {page * ON_A_PAGE + row}" for row in range(ON_A_PAGE)]


@app.step
async def convert(ctx: StepContext, customers: list[str]) -> int:
    if ctx.previous_checkpoint is not None:
        print("going on from the last checkpoint")
    async for customer in ctx.items(customers, every=50):
        await perdure.process.sleep(0.01 * PACE)
        if customer.endswith("00"):
            print(f"converting {customer} …")
    return len(customers)


@app.step
async def load(ctx: StepContext, count: int) -> str:
    await perdure.process.sleep(0.5 * PACE)
    # A receiver that honours the key does it once, however often a crash makes us ask.
    return f"{count} customers loaded, key {ctx.idempotency_key[:8]}"


@app.job
async def migrate(ctx: JobContext, pages: int) -> str:
    extracted = [await ctx.run(extract, page) for page in range(pages)]
    count = await ctx.run(convert, [customer for page in extracted for customer in page])
    return await ctx.run(load, count)


if __name__ == "__main__":
    # The key makes it one migration, however often this program is started.
    print(app.run_sync(migrate, PAGES, key="migration"))
