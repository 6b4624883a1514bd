"""A thousand files in one step: those that cannot be decoded are reported, the others are done."""

import os
import tempfile
from pathlib import Path

from msgspec import Struct

import perdure
from perdure import App, StepContext

FILES = 1000
EVERY_BAD = 250  # one in this many files is not text

app = App(os.environ.get("PERDURE_URL", "sqlite:///bulk_files.db"))


class Report(Struct):
    files: int
    bad: list[str]


@app.step
def find(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob("*.txt"))


@app.step
async def index(ctx: StepContext, paths: list[str], into: str) -> Report:
    # After a crash this continues with the first file after the last checkpoint. Each file has its
    # own result, so processing one twice does no harm.
    async for path in ctx.items(paths, every=100, on_error="skip"):
        await perdure.process.offload(count_words, Path(path), Path(into))
    report = ctx.item_report
    assert report is not None
    return Report(report.done, [f"{Path(bad.key).name}: {bad.error}" for bad in report.skipped])


@app.job
async def index_files(folder: str, into: str) -> Report:
    return await index(await find(folder), into)


def count_words(path: Path, into: Path) -> None:
    words = path.read_text("utf-8").split()
    (into / path.name).write_text(f"{len(words)}\n")


def write_files(folder: Path) -> None:
    for number in range(FILES):
        bad = number % EVERY_BAD == EVERY_BAD - 1
        text = b"\xff\xfe not text" if bad else b"word " * (number % 7 + 1)
        (folder / f"{number:04}.txt").write_bytes(text)


def main() -> None:
    with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as into:
        write_files(Path(source))
        report = app.run_sync(index_files(source, into))
        print(f"{report.files} files done, {len(report.bad)} skipped:")
        for bad in report.bad:
            print(f"  {bad}")


if __name__ == "__main__":
    main()
