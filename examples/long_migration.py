"""A migration of a thousand customers that can be killed at any moment and run again.

Each run continues where the last one stopped: finished steps do not run again, and the step in
which it was killed continues from its checkpoint.
"""

import os

import perdure
from perdure import App, StepContext

PAGES = 10
ON_A_PAGE = 100

# With `PACE=0` the work takes no time.
PACE = float(os.environ.get("PACE", "1"))

app = App(os.environ.get("PERDURE_URL", "sqlite:///long_migration.db"))


@app.step
async def extract(page: int) -> list[str]:
    await perdure.process.sleep(0.2 * PACE)
    print(f"extracted page {page}")
    return [f"customer {page * ON_A_PAGE + row}" for row in range(ON_A_PAGE)]


@app.step
async def convert(ctx: StepContext, customers: list[str]) -> int:
    if ctx.load_checkpoint() is not None:
        print("continuing from the last checkpoint")
    async for customer in ctx.items(customers, every=50):
        await perdure.process.sleep(0.01 * PACE)
        if customer.endswith("00"):
            print(f"converting {customer} …")
    return len(customers)


@app.step
async def load(ctx: StepContext, count: int) -> str:
    await perdure.process.sleep(0.5 * PACE)
    # A receiver that honours the key does it once, however often a crash repeats the call.
    return f"{count} customers loaded, key {ctx.idempotency_key[:8]}"


@app.job
async def migrate(pages: int) -> str:
    extracted = [await extract(page) for page in range(pages)]
    count = await convert([customer for page in extracted for customer in page])
    return await load(count)


if __name__ == "__main__":
    # The key makes this one migration, however often the program is started.
    print(app.run_sync(migrate(PAGES), key="migration"))
