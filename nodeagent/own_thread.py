"""Threads that no pool has: each for one piece of work, and nothing waits for their end."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from threading import Thread
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


class OwnThread(Executor):
    """Does each work in a new thread, which ends with it. The end of the process waits for none."""

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(
        self, fn: Callable[_Given, _Found], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> Future[_Found]:
        future: Future[_Found] = Future()
        future.set_running_or_notify_cancel()  # so that nobody cancels what a thread ends

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # raised again where it is awaited
                future.set_exception(error)

        Thread(target=run, name=self._name, daemon=True).start()
        return future
