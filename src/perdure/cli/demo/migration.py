"""The first act: a long migration of many small steps, and one long one."""

from msgspec import Struct

from perdure.app import App
from perdure.cli.demo.world import World
from perdure.engine.context import JobContext
from perdure.engine.step_context import StepContext
from perdure.process.timer import sleep

PAGES = 12
ON_A_PAGE = 50
CUSTOMERS = PAGES * ON_A_PAGE
CHECKPOINT_EVERY = 25
BATCHES = 12
IN_A_BATCH = CUSTOMERS // BATCHES


class Migrated(Struct, frozen=True):
    """The result of the migration."""

    customers: int
    checksum: int
    loaded: int


def add_to(app: App, world: World) -> None:
    """Define its steps and its job."""

    @app.step
    async def extract(_ctx: StepContext, page: int) -> list[int]:
        world.note("begin", "extract", page)
        await sleep(0.15 * world.pace)
        world.note("end", "extract", page)
        return list(range(page * ON_A_PAGE, (page + 1) * ON_A_PAGE))

    @app.step
    async def convert(ctx: StepContext, customers: list[int]) -> int:
        world.note("begin", "convert", 0)
        async for customer in ctx.items(customers, every=CHECKPOINT_EVERY):
            await sleep(0.006 * world.pace)
            world.note("item", "convert", customer)
        world.note("end", "convert", 0)
        return checksum(customers)

    @app.step
    async def load(ctx: StepContext, batch: int, rows: list[int]) -> int:
        world.note("begin", "load", batch)
        await sleep(0.15 * world.pace)
        # The key is the same at every attempt, so that the receiver can tell a repetition.
        await world.do(ctx.idempotency_key, deed(batch), rows)
        world.note("end", "load", batch)
        return len(rows)

    @app.job
    async def migrate(ctx: JobContext) -> Migrated:
        pages = [await ctx.run(extract, page) for page in range(PAGES)]
        customers = [customer for page in pages for customer in page]
        total = await ctx.run(convert, customers)
        loaded = 0
        for batch in range(BATCHES):
            rows = customers[batch * IN_A_BATCH : (batch + 1) * IN_A_BATCH]
            loaded += await ctx.run(load, batch, rows)
        return Migrated(len(customers), total, loaded)


def deed(batch: int) -> str:
    """Say what is done with a batch."""
    return f"take batch {batch}"


def checksum(customers: list[int]) -> int:
    """Give what the conversion comes to."""
    return sum(customer * customer for customer in customers)


def expected() -> Migrated:
    """Give the result of a migration that nothing disturbed."""
    return Migrated(CUSTOMERS, checksum(list(range(CUSTOMERS))), CUSTOMERS)
