"""Functions that entries name by their module."""


async def double(number: int) -> int:
    return 2 * number
