"""Steps as classes: objects with dependencies that take one value as input.

One step works through files and saves checkpoints itself; one file is broken until it is repaired.
Another sends a mail: an effect, which happens once however often the step is retried.
A second submission finds, by the idempotency keys of the steps, that everything is already done.
"""

import hashlib
import os
from dataclasses import dataclass

from perdure import App, Retry, StepContext
from perdure.errors import Permanent

FILES = [f"{number:03}.txt" for number in range(1, 251)]

app = App(os.environ.get("PERDURE_URL", "sqlite:///step_classes.db"))


@dataclass
class Bulk:
    files: list[str]


@dataclass
class Progress:
    """The checkpoint: a position, not results."""

    processed_count: int = 0
    failed_file: str | None = None


@dataclass
class Mail:
    to: str
    subject: str
    body: str


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class BulkFileProcess:
    """Process files one by one."""

    name = "bulk_file_process"
    retry = Retry(attempts=1)

    def __init__(self, broken: set[str]) -> None:
        self.broken = broken

    async def execute(self, bulk: Bulk, ctx: StepContext) -> int:
        start = (ctx.load_checkpoint(Progress) or Progress()).processed_count
        print(f"Resuming from file {start} of {len(bulk.files)}")

        for index, file in enumerate(bulk.files[start:], start):
            try:
                self.process(file)
            except ValueError as error:
                # Save the position, and fail.
                await ctx.save_checkpoint(Progress(index, failed_file=file))
                raise Permanent(f"Stuck at file: {file}") from error

            # A checkpoint every hundred files: after a crash at most so many are done again.
            if (index + 1) % 100 == 0:
                await ctx.save_checkpoint(Progress(index + 1))
                print(f"Checkpoint at file {index + 1}/{len(bulk.files)}")
        return len(bulk.files)

    def process(self, file: str) -> None:
        if file in self.broken:
            raise ValueError("not text")

    def idempotency_key(self, bulk: Bulk) -> str:
        return digest(*bulk.files)


class Gateway:
    """A receiver that honours keys: a repeated call gets the answer of the first."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}

    async def send(self, key: str, mail: Mail) -> str:
        if key not in self.answers:
            print(f"Mail to {mail.to}: {mail.subject}")
        return self.answers.setdefault(key, f"message {len(self.answers) + 1}")


class ExternalEmail:
    """Send a mail."""

    name = "send_email"
    tags = frozenset({"external_email"})

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def execute(self, mail: Mail, ctx: StepContext) -> str:
        # Recorded before and after the call, with a key that the gateway recognises.
        return await ctx.effect(
            "email",
            lambda key: self.gateway.send(key, mail),
            target=mail.to,
            details={"subject": mail.subject},
            in_doubt="replay",
        )

    async def compensate(self, mail: Mail, message_id: str | None, ctx: StepContext) -> None:
        if message_id is None:
            return  # it was never sent
        # A mail cannot be recalled, so another one explains.
        sorry = Mail(mail.to, f"Please ignore: {mail.subject}", "")
        await ctx.effect("email", lambda key: self.gateway.send(key, sorry), target=mail.to)

    def idempotency_key(self, mail: Mail) -> str:
        return digest(mail.to, mail.subject, mail.body)


bulk_file_process = BulkFileProcess(broken={"142.txt"})
process_files = app.add(bulk_file_process)
send_email = app.add(ExternalEmail(Gateway()))


@app.job
async def report(files: list[str], to: str) -> str:
    done = await process_files(Bulk(files))
    return await send_email(Mail(to, f"{done} files are done", "See for yourself."))


async def main() -> None:
    handle = await app.submit(report(FILES, "kim@example.com"))
    print(f"The job is {await handle.wait()}")

    bulk_file_process.broken.clear()
    await handle.retry(reason="142.txt is repaired", by="kim")
    print(f"Sent as {await handle.result()}")

    again = await app.submit(report(FILES, "kim@example.com"))
    print(f"Submitted again: {await again.result()}")


if __name__ == "__main__":
    app.run_sync(main)
