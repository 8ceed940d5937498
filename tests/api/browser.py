"""A headless Chromium, driven over its DevTools protocol."""

import asyncio
import base64
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

from tests.machine_load import stretched

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
CHROMIUM = next((path for name in _NAMES if (path := shutil.which(name))), None)

_SOON = 60.0  # seconds that anything of the browser may take
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-extensions", "--disable-breakpad", "--hide-scrollbars"),
    "--remote-debugging-port=0",
)
# What the browser reports of a page: exceptions, errors on the console, breaches of its policy.
_DOMAINS = ("Page", "Runtime", "Log")


class Tab:
    """A tab. `errors` are what went wrong in it; answers that did not come are no error of it."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.errors: list[str] = []
        self._socket = socket
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def read(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            elif said["method"] == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded":
                entry = said["params"]["entry"]
                if entry["level"] == "error" and entry["source"] != "network":
                    self.errors.append(entry["text"])

    async def call(self, method: str, **parameters: object) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(stretched(_SOON)):
            said = await answer
        assert "error" not in said, said
        result: dict[str, Any] = said["result"]
        return result

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives in the page."""
        said = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def until(self, condition: str) -> None:
        async with asyncio.timeout(stretched(_SOON)):
            while not await self.value(condition):
                await asyncio.sleep(0.02)

    async def show_on(self, width: int, scheme: str) -> None:
        """Lay the page out for a screen of so many pixels, `light` or `dark`."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def picture(self, path: Path) -> None:
        """Write the whole page, also what has to be scrolled to, as a PNG."""
        await self.value("scrollTo(0, 0)")  # a banner that stays in view is at the top
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        taken = await self.call(
            "Page.captureScreenshot",
            captureBeyondViewport=True,
            clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1},
        )
        await asyncio.to_thread(path.write_bytes, base64.b64decode(taken["data"]))


@asynccontextmanager
async def tab(folder: Path) -> AsyncIterator[Tab]:
    """A tab of a browser of its own, whose files are in `folder`."""
    assert CHROMIUM is not None
    profile = folder / "profile"
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *_FLAGS,
        f"--user-data-dir={profile}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "TZ": "UTC"},
        start_new_session=True,
    )
    try:
        async with ClientSession() as session:
            base = f"http://127.0.0.1:{await _port(profile, process)}"
            async with session.put(f"{base}/json/new?about:blank") as answer:
                address = (await answer.json(content_type=None))["webSocketDebuggerUrl"]
            async with session.ws_connect(address, max_msg_size=0) as socket:
                opened = Tab(socket)
                reading = asyncio.create_task(opened.read())
                try:
                    for domain in _DOMAINS:
                        await opened.call(f"{domain}.enable")
                    yield opened
                finally:
                    reading.cancel()
                    with suppress(asyncio.CancelledError):
                        await reading
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _port(profile: Path, process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(stretched(_SOON)):
        while (port := _written_port(profile)) is None:
            assert process.returncode is None, "the browser ended"
            await asyncio.sleep(0.02)
    return port


def _written_port(profile: Path) -> int | None:
    """It is written, and a path behind it, when the browser listens."""
    with suppress(FileNotFoundError):
        match (profile / "DevToolsActivePort").read_text(encoding="utf-8").split():
            case [port, _]:
                return int(port)
    return None
