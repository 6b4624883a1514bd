"""The BEAM with one scheduler: Erlang's own virtual machine, where it is on the PATH.

The workloads are written in Erlang, in ``beam.erl``; here they are only compiled and run.
"""

import json
import subprocess
import tempfile
from functools import partial
from pathlib import Path

# Below the limit of the run, so that no virtual machine outlives the measurement that started it.
_TIME_LIMIT = 8.0
_ONE_SCHEDULER = ("-noshell", "+S", "1", "+P", "1000000")  # +P: more processes than `idle` has
# A scheduler without work spins for a while by default, and processor time is what is measured.
_NO_SPINNING = ("+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none")


def _measure(workload: str, n: int) -> float:
    """Return the seconds of ``n`` operations; of ``idle``, the bytes."""
    with tempfile.TemporaryDirectory() as folder:
        _output("erlc", "-o", folder, str(Path(__file__).with_name("beam.erl")))
        program = ("-pa", folder, "-run", "beam", "main", workload, str(n))
        line = _output("erl", *_ONE_SCHEDULER, *_NO_SPINNING, *program)
    return float(json.loads(line)["value"])


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


pingpong = partial(_measure, "pingpong")
call = partial(_measure, "call")  # by hand, with a monitor and a time-out
fan_in = partial(_measure, "fan_in")
spawn = partial(_measure, "spawn")
cascade = partial(_measure, "cascade")
idle = partial(_measure, "idle")
server_call = partial(_measure, "server_call")  # ``gen_server:call``
agent_update = partial(_measure, "agent_update")  # a ``gen_server`` that applies functions
restart = partial(_measure, "restart")
