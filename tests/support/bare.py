"""Code that needs nothing of Perdure."""

import sys


async def loaded() -> list[str]:
    """Give the parts of Perdure that are loaded here, beside the kernel."""
    ours = [name.split(".")[1] for name in sys.modules if name.startswith("perdure.")]
    return sorted(set(ours) - {"base", "process"})


async def all_of_it() -> bool:
    """Ask for something that only the whole package knows."""
    return sys.modules["perdure"].otp.Task is not None
