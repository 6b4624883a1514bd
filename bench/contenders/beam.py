"""The BEAM with one scheduler: Erlang's own virtual machine, where it is on the PATH."""

import json
import subprocess
import tempfile
from pathlib import Path

# Below the limit of the run, so that no virtual machine outlives the measurement that started it.
_TIME_LIMIT = 8.0


def pingpong(n: int) -> float:
    """Two processes."""
    return _seconds("beam_pingpong", n)


def server_call(n: int) -> float:
    """``gen_server:call``, which monitors the server, with its usual time-out of 5 seconds."""
    return _seconds("beam_call", n)


def _seconds(module: str, n: int) -> float:
    """Compile a program, run it, and take the seconds from the line that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        _output("erlc", "-o", folder, str(Path(__file__).with_name(f"{module}.erl")))
        options = ("+S", "1", "-noshell", "-pa", folder)
        line = _output("erl", *options, "-run", module, "main", str(n))
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
