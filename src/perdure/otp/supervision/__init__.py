"""Supervision: child specs, the restart loop, and the three kinds of supervisor built on it."""

from perdure.otp.supervision.dynamic import DynamicSupervisor
from perdure.otp.supervision.partition import PartitionSupervisor
from perdure.otp.supervision.spec import BRUTAL_KILL, IGNORE, ChildSpec, child
from perdure.otp.supervision.supervisor import Supervisor

__all__ = [
    "BRUTAL_KILL",
    "IGNORE",
    "ChildSpec",
    "DynamicSupervisor",
    "PartitionSupervisor",
    "Supervisor",
    "child",
]
