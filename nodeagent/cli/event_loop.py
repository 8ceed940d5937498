"""Running one coroutine to its end."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run it as `asyncio.run` does, but the main task does not hold the result.

    Python 3.11 writes out the main task, result and all, when it gives the signal handler back
    (`signal.getsignal` looks up an enumeration that has no such member); for a plan of 56
    instances that takes a tenth of a whole `assert`.
    """
    results: list[_Result] = []

    async def keep() -> None:
        results.append(await coroutine)

    asyncio.run(keep())
    return results[0]
