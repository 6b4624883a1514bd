"""``python -m bench.durable.worker CONTENDER STORE FOLDER SERVER``: one worker of one contender.

To every line on its stdin it answers with its usage, as one line of JSON on its stdout.
It ends when its stdin does, so that it never outlives the trial that started it.
"""

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path

from bench.durable.contenders import module
from bench.durable.marks import PEN
from bench.durable.place import Place

CONCURRENCY = 100
KILOBYTES_IN_MB = 1024


def main(contender: str, place: Place) -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a contender prints is no answer
    threading.Thread(target=_answer_for_ever, args=(answers,), daemon=True).start()
    PEN.open(place.marks)
    module(contender).work(place, CONCURRENCY)


def _answer_for_ever(answers: int) -> None:
    while os.read(0, 4096):
        usage = {"cpu": time.process_time(), "peak_mb": _peak_kilobytes() / KILOBYTES_IN_MB}
        os.write(answers, json.dumps(usage).encode() + b"\n")
    os._exit(0)


def _peak_kilobytes() -> float:
    """Give the most memory that this program has had."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return float(fields["VmHWM"].split()[0])
    # This one counts what the process had before it became this program, too.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1024 if sys.platform == "darwin" else most


if __name__ == "__main__":
    main(sys.argv[1], Place(sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
