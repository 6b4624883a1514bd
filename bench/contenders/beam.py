"""The BEAM with one scheduler: Erlang's own virtual machine, where it is on the PATH."""

import json
import subprocess
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("beam_pingpong.erl")
# Below the limit of the run, so that no virtual machine outlives the measurement that started it.
_TIME_LIMIT = 8.0


def pingpong(n: int) -> float:
    """Compile the program, run it, and take the seconds from the line that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        _output("erlc", "-o", folder, str(_SOURCE))
        options = ("+S", "1", "-noshell", "-pa", folder)
        line = _output("erl", *options, "-run", "beam_pingpong", "main", str(n))
    return float(json.loads(line)["seconds"])


def _output(*command: str) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIME_LIMIT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {' '.join(done.stdout.split())}")
    return done.stdout
