"""The agent's local API: gRPC on a unix socket, read-only. The CLI's source, and any local program's.

The socket's mode (0660) and its folder's group decide who may connect. There is no TCP.
"""

import asyncio
import difflib
import errno
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from agent.api.messages import explanation_message, vms_message
from agent.api.state import AgentState
from collector.base import VmIdentity
from whitepanda.common import log
from whitepanda.common.errors import ConfigError, InputError, UnavailableError
from whitepanda.common.files.private import group_socket
from whitepanda.common.texts import several_named
from whitepanda.v1 import host_pb2, host_pb2_grpc

#: Largest answer; 1,000 VMs with all metrics are about 1 MB. Requests are small.
MAX_MESSAGE_BYTES = 32 << 20
_MAX_REQUEST_BYTES = 64 << 10
_MAX_PATH_BYTES = 107  # sun_path, less its final NUL
_SERVICE = host_pb2.DESCRIPTOR.services_by_name["LocalHost"].full_name


class LocalApi:
    """The server on the unix socket; its folder is made if it is missing. The state is read on `start`'s loop."""

    def __init__(self, state: AgentState, path: Path) -> None:
        self._state = state
        self._path = path
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._log = log.get("local_api")

    async def start(self) -> None:
        """Begin to answer.

        Raises:
            ConfigError: the path is too long, or something else is there.
            UnavailableError: another agent answers there, or the folder may not be written.

        """
        _prepare(self._path)
        limits = ("receive", _MAX_REQUEST_BYTES), ("send", MAX_MESSAGE_BYTES)
        server = grpc.aio.server(options=[(f"grpc.max_{way}_message_length", most) for way, most in limits])
        host_pb2_grpc.add_LocalHostServicer_to_server(_Servicer(self._state), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        try:
            with group_socket(self._path):
                server.add_insecure_port(f"unix:{self._path}")
        except RuntimeError as error:
            raise UnavailableError(f"cannot listen at {self._path}: {error}; see agent.socket") from error
        await server.start()
        self._server = server
        for service in ("", _SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        self._log.info("local API listening", socket=str(self._path))

    async def stop(self, grace_s: float = 0.5) -> None:
        """Stop answering and remove the socket; may be called twice."""
        server, self._server = self._server, None
        if server is None:
            return
        await self._health.enter_graceful_shutdown()
        await server.stop(grace_s)
        self._path.unlink(missing_ok=True)


def _prepare(path: Path) -> None:
    """Make the folder; remove a socket that no process serves any more."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        limit = f"{_MAX_PATH_BYTES} bytes, the maximum for a unix socket"
        raise ConfigError(f"agent.socket is longer than {limit} (value {str(path)!r})")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnavailableError(f"cannot make the folder of agent.socket {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"agent.socket {path} exists and is not a socket; remove it, or set another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        code = probe.connect_ex(str(path))
    if code in (errno.ECONNREFUSED, errno.ENOENT):
        path.unlink(missing_ok=True)
        return
    if code in (errno.EACCES, errno.EPERM):
        raise UnavailableError(
            f"no permission for the socket {path}: it belongs to another user's agent; set another agent.socket"
        )
    raise UnavailableError(f"another agent runs here: it answers at {path}; stop it, or set agent.socket")


class _Servicer(host_pb2_grpc.LocalHostServicer):  # type: ignore[misc] # generated code is untyped
    """Turns the state's views into messages."""

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._reading = asyncio.Lock()

    async def GetStatus(  # noqa: N802 - the name in the proto
        self, _request: host_pb2.GetStatusRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> host_pb2.HostStatus:
        return self._state.host()

    async def ListVms(  # noqa: N802 - the name in host.proto
        self, request: host_pb2.ListVmsRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> host_pb2.ListVmsResponse:
        return vms_message(self._state, frozenset(request.metrics) or None)

    async def ExplainVm(  # noqa: N802 - the name in host.proto
        self, request: host_pb2.ExplainVmRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> host_pb2.VmExplanation:
        vms = [vm.identity for vm in self._state.vms()]
        # A UUID wins, even if another VM has it as its name.
        found = [v for v in vms if v.uuid == request.vm] or [v for v in vms if v.name == request.vm]
        if len(found) > 1:
            detail = several_named(request.vm, [f"{v.uuid} ({v.manager})" for v in found])
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, detail)
        answer = explanation_message(self._state, found[0].uuid) if found else None
        if answer is None:
            await _not_found(request.vm, vms, context)
        return answer

    async def GetMoments(  # noqa: N802 - the name in host.proto
        self, request: host_pb2.GetMomentsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> host_pb2.GetMomentsResponse:
        if self._state.moments is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the history is off: set history.days above 0")
            raise AssertionError  # abort has raised
        try:
            # One at a time, as each takes time of the only interpreter; the thread goes on when its client has gone.
            await self._reading.acquire()
            reading = asyncio.ensure_future(asyncio.to_thread(self._state.moments, request))
            reading.add_done_callback(self._has_read)
            return await asyncio.shield(reading)
        except InputError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except UnavailableError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError  # abort has raised

    def _has_read(self, reading: asyncio.Future[host_pb2.GetMomentsResponse]) -> None:
        self._reading.release()
        if not reading.cancelled():
            reading.exception()  # nobody may be left to ask for it


async def _not_found(asked: str, vms: Sequence[VmIdentity], context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
    if not asked:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "name a VM: its name or UUID")
    names = [name for vm in vms for name in (vm.name, vm.uuid)]
    near = difflib.get_close_matches(asked, names, n=3, cutoff=0.5)
    if near:
        hint = f"did you mean {', '.join(near)}?"
    elif vms:
        hint = f"there are {len(vms)}, such as {vms[0].name}; `whitepanda vms` lists them"
    else:
        hint = "there is none on this host now"
    await context.abort(grpc.StatusCode.NOT_FOUND, f"no VM has the name or UUID {asked[:80]!r}: {hint}")
    raise AssertionError  # abort has raised
