"""A listener for /metrics and the health paths alone, with TLS and passwords where configured.

When the web-config file changes, or a certificate that it names, connections from then on are as
it says now; the address is never given up in between. A file that cannot be used leaves what was
in force. At the start there is nothing to leave: until it can be used connections are refused.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from nodeagent.api.answers import Answers
from nodeagent.api.connection import Connection, Serving, count_refused, read_whole_request
from nodeagent.api.guard import errors_as_json, refuse_foreign_hosts, set_headers
from nodeagent.api.limits import TCP_LIMITS, Reason, Refusals, RequestLimits, peer_of
from nodeagent.api.metrics_routes import metrics_routes
from nodeagent.api.passwords import PasswordCheck, TooManyAsk
from nodeagent.api.web_config import WebConfig, read_web_config
from nodeagent.errors import NodeagentError
from nodeagent.files.watch import Signature, signature

_INTERVAL = 2.0  # seconds between checks of the files; certificates are renewed in days


@dataclass
class MetricsListener:
    """Listens as long as `run` runs. `report` gets its problem whenever that changes,
    None when all is well.

    `host` "" means all addresses, `port` 0 any free one; `port` is the real one afterwards.
    """

    answers: Answers
    host: str
    port: int
    web_config: Path | None
    report: Callable[[NodeagentError | None], None]
    refusals: Refusals
    limits: RequestLimits = TCP_LIMITS
    interval: float = _INTERVAL
    _listener: socket.socket | None = None
    _serving: Serving | None = None
    _ending: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._check = PasswordCheck(self.limits)

    async def run(self) -> None:
        """Listen until cancelled. A file or an address that cannot be used is reported, and tried
        again: another exporter may have the address still, and the agent has more to do than this.
        """
        try:
            await self._follow()
        finally:
            if self._listener:
                self._listener.close()
            if self._serving:
                await self._serving.end()
            await asyncio.gather(*self._ending, return_exceptions=True)
            await self._check.close()

    async def _follow(self) -> None:
        known: list[Signature] | None = None
        files: tuple[Path, ...] = (self.web_config,) if self.web_config else ()
        reported = ""
        while True:
            found = await asyncio.to_thread(_signatures, files)
            if found != known or self._listener is None:
                try:
                    config = WebConfig()
                    if self.web_config:
                        config = await asyncio.to_thread(read_web_config, self.web_config)
                        named = (self.web_config, *(config.tls.files if config.tls else ()))
                        if named != files:  # what is written from here on is seen the next time
                            files = named
                            found[1:] = await asyncio.to_thread(_signatures, files[1:])
                    await self._serve(config)
                except NodeagentError as error:
                    if found != known or error.message != reported:
                        self.report(error)
                    reported = error.message
                else:
                    self.report(None)
                    if not files:  # that could change
                        await asyncio.Event().wait()
                known = found
            await asyncio.sleep(self.interval)

    async def _serve(self, config: WebConfig) -> None:
        context = await asyncio.to_thread(config.tls.context) if config.tls else None
        if config.users:  # one check for all files: a reload forgets no password that was right
            self._check.users = {name: text.encode() for name, text in config.users.items()}
        if self._listener is None:  # not before: who connects would wait for an answer
            self._listener = await asyncio.to_thread(_socket, self.host, self.port)
            self.port = self._listener.getsockname()[1]
        serving = Serving(self._app(config), "metrics", self.limits, self.refusals)
        await serving.start(sock=self._listener.dup(), context=context)
        earlier, self._serving = self._serving, serving
        if earlier:
            ending = asyncio.create_task(earlier.end(), name="end an earlier listener")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _app(self, config: WebConfig) -> web.Application:
        middlewares = [errors_as_json, refuse_foreign_hosts(self.host)]
        if config.users:
            middlewares.append(_passwords(self._check))
        middlewares.append(read_whole_request)
        app = web.Application(middlewares=middlewares, client_max_size=1024)

        async def set_more(_: web.Request, response: web.StreamResponse) -> None:
            response.headers.update(config.http.headers if config.http else {})

        app.on_response_prepare.append(set_headers)
        app.on_response_prepare.append(set_more)
        app.add_routes(metrics_routes(self.answers, self.limits))
        return app


def _passwords(check: PasswordCheck) -> Middleware:
    """A middleware that lets in only those who prove who they are."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        header = request.headers.get("Authorization", "")
        peer = request.transport.get_extra_info("peername") if request.transport else None
        if isinstance(request.protocol, Connection):
            request.protocol.stop_deadline()
        try:
            right = await check.accepts(header, peer_of(peer))
        except TooManyAsk:
            count_refused(request, Reason.BUSY)
            raise web.HTTPTooManyRequests(text="too many passwords wait to be checked") from None
        if not right:
            if header:
                count_refused(request, Reason.PASSWORD)
            return web.json_response(
                {"error": "a name and its password are needed"},
                status=401,
                headers={"WWW-Authenticate": 'Basic realm="nodeagent"'},
            )
        return await handler(request)

    return guard


def _signatures(files: Iterable[Path]) -> list[Signature]:
    return [signature(path) for path in files]


def _socket(host: str, port: int) -> socket.socket:
    try:
        if not host:
            if socket.has_dualstack_ipv6():
                try:
                    return socket.create_server(
                        ("", port), family=socket.AF_INET6, dualstack_ipv6=True
                    )
                except OSError:
                    pass  # IPv6 may be switched off although it could be had
            return socket.create_server(("", port))
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise NodeagentError.of(
            "metricsAddress", host=host, port=port, why=error.strerror or error
        ) from error
