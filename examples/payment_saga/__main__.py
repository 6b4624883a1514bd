"""Place an order; `python -m examples.payment_saga [pay|reserve|confirm|end]` makes it fail there.

Kill it in the middle and start it again with the same arguments: nothing is done or undone twice.
"""

import sys

from examples.payment_saga.orders import app, place_order
from perdure import JobState


async def main() -> None:
    broken = sys.argv[1] if len(sys.argv) > 1 else ""
    handle = await app.submit(place_order(7, broken), key=f"order 7 {broken}")
    state = await handle.wait("30s")
    print(f"order 7 is {state}")
    if state is not JobState.COMPLETED:
        undone = [entry for entry in await handle.journal() if entry.id.startswith("undo:")]
        print("undone: " + ", ".join(entry.id.removeprefix("undo:") for entry in undone))


app.run_sync(main)
