"""The command `python -m examples.pool`."""

import argparse
import sys

import perdure
from examples.pool.console import show_reports
from examples.pool.dispatcher import Jobs, dispatch

DESCRIPTION = "Workers crash on some jobs, are restarted after 100 ms, and the work continues."
ENDING = """\
Ctrl-C and SIGTERM stop in order: each worker finishes its job, and the exit code is 0.
A second one kills at once; the exit code is then 130 or 143."""


async def main(worker_count: int = 4, job_count: int | None = 40) -> None:
    count = "endless" if job_count is None else job_count
    print(f"{worker_count} workers, {count} jobs; some jobs crash the worker that does them.\n")
    print(f"\n{summary(await dispatch(worker_count, job_count))}")


def summary(jobs: Jobs) -> str:
    total = "" if jobs.count is None else f" of {jobs.count}"
    given_up = ", ".join(map(str, jobs.given_up)) or "none"
    return f"Jobs done:  {jobs.done}{total}\nGiven up:   {given_up}\nCrashes:    {jobs.crashes}"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m examples.pool",
        description=DESCRIPTION,
        epilog=ENDING,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=positive, default=4, metavar="N", help="default: 4")
    parser.add_argument("--jobs", type=positive, default=40, metavar="N", help="default: 40")
    parser.add_argument("--forever", action="store_true", help="work until Ctrl-C")
    parser.add_argument("--verbose", action="store_true", help="show each job and each traceback")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of 1 or more, not {text!r}")
    return int(text)


if __name__ == "__main__":
    options = parse()
    show_reports(verbose=options.verbose)
    try:
        perdure.run(main, options.workers, None if options.forever else options.jobs)
    except KeyboardInterrupt:
        sys.exit(130)
