"""The app: its steps and its job."""

import os
from functools import partial

from examples.onboarding.gateway import GATEWAY
from examples.onboarding.model import Customer, Extract, Mail, Profile, Report
from perdure import App, JobContext, Retry, StepContext

app = App(os.environ.get("PERDURE_URL", "sqlite:///onboarding.db"))


@app.step(
    retry=Retry(attempts=5, initial_delay="200ms", factor=2, max_delay="30s"),
    timeout="2m",
    tags={"external_email"},
    irreversible=True,
)
async def send_mail(ctx: StepContext, mail: Mail) -> str:
    async def deliver(key: str) -> str:  # the key is stable across crashes and retries
        return await GATEWAY.send(mail, key)

    return await ctx.effect("email", deliver, target="gateway", in_doubt="replay", key_ttl="24h")


@send_mail.compensate
async def send_apology(ctx: StepContext, mail: Mail, message_id: str | None) -> None:
    """Apologise, since a mail cannot be recalled."""
    if message_id is None:
        return  # it was never sent
    sorry = Mail(mail.to, "Sorry", f"Please forget {message_id}")
    await ctx.effect("email", partial(GATEWAY.send, sorry), target="gateway", in_doubt="replay")


@app.step
async def enrich(customer: Customer) -> Profile:
    return Profile(customer, ["register", "bank"], [f"page {n}" for n in range(250)])


@app.step
async def check(source: str) -> bool:
    return source in ("register", "bank")


@app.step
async def convert(ctx: StepContext, files: list[str]) -> Report:
    async for name in ctx.items(files, every=100, or_after="30s"):
        ctx.collect(await GATEWAY.convert(name))  # durable with the position behind the file
    return Report(ctx.collected(str))  # of all files, also of those before a crash


@app.job
async def onboard(ctx: JobContext, customer: Customer, reflection: str = "3d") -> str:
    profile = await enrich(customer)
    parts = await ctx.gather(*(check(source) for source in profile.sources))
    report = await convert(profile.files)
    await ctx.approve("send the contract", risk="high", expires="2h")  # occupies no worker
    await ctx.sleep(reflection)  # occupies no worker
    answer = await ctx.receive("signed", timeout="7d")
    text = f"{answer} signed; {sum(parts)} checks, {len(report.converted)} pages"
    return await send_mail(Mail(customer.address, "Welcome", text))


@app.step
async def extract(source: str) -> Extract:
    return Extract([1, 2, len(source)])


@app.step
async def load(rows: list[int]) -> int:
    return len(rows)
