"""The fleet API as JSON over HTTP, answered by the same code as gRPC's, and the fleet page; on central's loop.

On loopback it is plain HTTP for everyone on the machine. Elsewhere it is TLS with central's certificate, and callers
need an operator's.
"""

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import grpc
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from central.api.admission import Turns
from central.api.fleet import Fleet
from central.api.limits import MAX_HTTP_BYTES
from central.api.overview import get_status
from central.api.requests import ApiError
from central.authorisation.http_middleware import CERTIFICATE, Authorisation, names_and_serial
from central.authorisation.roles import ROLES, Access
from central.config import HttpSection
from central.page import files
from central.web import metrics
from central.web.connections import ClientProtocol, Connections
from central.web.openapi import ROUTES, Route, document, read_body, read_request, to_json
from whitepanda.common import log
from whitepanda.common.config import is_loopback, is_own_name
from whitepanda.common.errors import UnavailableError
from whitepanda.common.tls import TlsFiles, stamps
from whitepanda.v1 import fleet_pb2

_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.UNAUTHENTICATED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.FAILED_PRECONDITION: 410,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.CANCELLED: 499,  # the client is gone
    grpc.StatusCode.UNAVAILABLE: 503,
}
_KEEP_ALIVE_S = 5
_STOP_GRACE_S = 3
_RELOAD_S = 30.0
_COMPRESSED_FROM_BYTES = 1000
_COMPRESSION = 4  # 1000 hosts in 3 ms, a tenth of their size


def make_app(fleet: Fleet, access: Access | None) -> Starlette:
    """Make the application. `access` is None on loopback: everyone on the machine may ask by this server's name."""
    text = json.dumps(document()).encode()
    turns = Turns(1)  # of totals, which so wait for no question

    async def openapi(_request: Request) -> Response:
        async with fleet.turns.turn():
            return Response(text, media_type="application/json")

    async def health(_request: Request) -> Response:
        return _json({"status": "serving"})

    async def totals(request: Request) -> Response:
        async with turns.turn():
            if await request.is_disconnected():
                raise ApiError(grpc.StatusCode.CANCELLED, "the client left")
            status = await get_status(fleet, fleet_pb2.GetFleetStatusRequest())
            return Response(metrics.render(status), media_type=metrics.CONTENT_TYPE)

    routes = [
        HttpRoute(route.path, _endpoint(fleet, route) if route.verb == "GET" else _writing(fleet, route, access),
                  methods=[route.verb])
        for route in ROUTES
    ]  # fmt: skip
    routes += [
        HttpRoute("/openapi.json", openapi),
        HttpRoute("/healthz", health),
        HttpRoute("/metrics", totals),
        *files.routes(),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(_OwnNameOnly) if access is None else Middleware(Authorisation, access),
            Middleware(GZipMiddleware, minimum_size=_COMPRESSED_FROM_BYTES, compresslevel=_COMPRESSION),
        ],
        exception_handlers={
            ApiError: _no_answer,
            404: lambda _request, _error: _json({"error": "nothing is here; /openapi.json lists what there is"}, 404),
            405: _not_known,
            500: lambda _request, _error: _json({"error": "central failed; its log says why"}, 500),
        },
    )
    app.router.redirect_slashes = False
    return app


@dataclass
class _OwnNameOnly:
    """Refuses requests for another server's name, which TLS does by the certificate."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = Headers(scope=scope).get("host", "")
        error = f"this server does not go by that name (Host {name[:80]!r}); use its address"
        app = self.app if is_own_name(name, ()) else _json({"error": error}, 400)
        await app(scope, receive, send)


def _endpoint(fleet: Fleet, route: Route) -> Any:
    async def answer(request: Request) -> Response:
        values = [*request.query_params.multi_items(), *request.path_params.items()]
        found = await fleet.answer(route.method, read_request(route, values), request.is_disconnected)
        return _tagged(request, to_json(found))

    return answer


def _writing(fleet: Fleet, route: Route, access: Access | None) -> Any:
    """Return what answers a POST. It must be JSON, which pages of other sites cannot send, and not be from one."""

    async def answer(request: Request) -> Response:
        certificate: Any = request.scope.get("state", {}).get(CERTIFICATE)
        names, serial = names_and_serial(certificate)
        role = ROLES[f"/whitepanda.v1.Fleet/{route.method}"]
        if access is not None and (refusal := access.refusal(role, names, serial)):
            raise ApiError(*refusal)
        origin = request.headers.get("origin", "")
        if origin and urlsplit(origin).netloc != request.headers.get("host", ""):
            raise ApiError(grpc.StatusCode.PERMISSION_DENIED, f"a page of {origin[:80]!r} may change nothing here")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _json({"error": "the body must be JSON, with Content-Type: application/json"}, 415)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_HTTP_BYTES:
                return _json({"error": f"the body is longer than {MAX_HTTP_BYTES:,} bytes"}, 413)
        asked = read_body(route, list(request.path_params.items()), bytes(body))
        found = await fleet.answer(route.method, asked, request.is_disconnected, names)
        return _json(to_json(found))

    return answer


def _no_answer(_request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        return _json({"error": str(error)}, 500)
    about = {"field": error.field, "problem": error.problem}
    given = {name: text for name, text in about.items() if text}
    return _json({"error": str(error), **given}, _STATUS.get(error.code, 500))


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(value, allow_nan=False), status, headers, media_type="application/json")


def _tagged(request: Request, value: Any) -> Response:
    """Return the value, or 304 where the caller has it already, as pages often do."""
    text = json.dumps(value, allow_nan=False).encode()
    etag = f'W/"{hashlib.sha256(text).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if files.is_known(request, etag):
        return Response(status_code=304, headers=headers)
    return Response(text, media_type="application/json", headers=headers)


def _not_known(request: Request, _error: Exception) -> Response:
    """Answer OPTIONS, and methods that the path does not have."""
    verbs = {route.verb for route in ROUTES if compile_path(route.path)[0].match(request.url.path)} or {"GET"}
    allow = {"Allow": ", ".join([*(("GET", "HEAD") if "GET" in verbs else ()), "OPTIONS", *(verbs & {"POST"})])}
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=allow)
    error = f"{request.method[:20]} is not known here; known: {allow['Allow']}"
    return _json({"error": error}, 405, allow)


class HttpApi:
    """The server.

    It listens on `listen`, host:port; port 0 takes a free one, `port` has it once started. Beyond loopback it uses
    `tls`, and `access` decides who may ask. `refused` counts refusals by reason.
    """

    def __init__(
        self,
        fleet: Fleet,
        listen: str,
        tls: TlsFiles,
        access: Access,
        section: HttpSection | None = None,
        refused: Counter[str] | None = None,
    ) -> None:
        self._connections = Connections(section or HttpSection(), Counter() if refused is None else refused)
        self._fleet = fleet
        self._listen = listen
        self._tls = tls
        self._access = access
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen; raises UnavailableError if the address or the certificate cannot be used."""
        host, _, port = self._listen.rpartition(":")
        host = host.strip("[]")
        is_local = is_loopback(host)
        options: dict[str, Any] = {"http": ClientProtocol}
        if not is_local:
            options |= {"ssl_certfile": self._tls.certificate, "ssl_keyfile": self._tls.key}
            options |= {"ssl_ca_certs": self._tls.ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        app = make_app(self._fleet, None if is_local else self._access)
        config = uvicorn.Config(
            app, log_config=None, log_level="error", access_log=False, lifespan="off", proxy_headers=False,
            server_header=False, h11_max_incomplete_event_size=MAX_HTTP_BYTES, timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_GRACE_S, ws="none", **options,
        )  # fmt: skip
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            raise UnavailableError(f"central.http_listen {self._listen}: cannot use central.tls: {error}") from error
        if config.ssl is not None:
            config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
            self._reloading = asyncio.create_task(self._reload(config.ssl), name="http certificates")
        listener = _listener(self._listen, host, int(port))
        self.port = listener.getsockname()[1]
        self._server = _Server(config, self._connections)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="http")

    async def stop(self) -> None:
        """Finish answers, for a moment, and close."""
        if self._reloading is not None:
            self._reloading.cancel()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)

    async def _reload(self, context: ssl.SSLContext) -> None:
        """Use renewed certificate files for new connections; a change of the CA wants a restart."""
        known = stamps(self._tls)
        while True:
            await asyncio.sleep(_RELOAD_S)
            now = stamps(self._tls)
            if now != known:
                known = now
                try:
                    # First into a spare context: a certificate without its key would spoil the one in force.
                    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._tls.certificate, self._tls.key)
                    context.load_cert_chain(self._tls.certificate, self._tls.key)
                except OSError as error:
                    message = "changed certificate files cannot be used for HTTP; the previous ones stay in use"
                    log.get("http").error(message, problem=str(error))


class _Server(uvicorn.Server):
    """Uvicorn with bounds on connections; central handles signals."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self._connections = connections
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, in place of asyncio's own server."""
        [listener] = sockets or []
        await self.lifespan.startup()
        self.servers = []

        def make() -> ClientProtocol:
            kind: Any = self.config.http_protocol_class
            made = kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
            return cast("ClientProtocol", made)

        serving = self._connections.serve(listener, make, self.config.ssl)
        self._accepting = asyncio.create_task(serving, name="http connections")
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and let uvicorn end what is open."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listener(listen: str, host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(128)
            found.setblocking(False)
        except BaseException:
            found.close()
            raise
    except OSError as error:
        why = os.strerror(errno.EADDRINUSE) if error.errno == errno.EADDRINUSE else error.strerror
        raise UnavailableError(
            f'central.http_listen {listen}: {why}; set another central.http_listen, or "" for no HTTP'
        ) from error
    return found
