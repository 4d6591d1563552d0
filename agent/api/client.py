"""Asks the agent of this host over its unix socket: what the CLI stands on. Errors say what to do."""

import errno
import os
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from agent.api.server import MAX_MESSAGE_BYTES
from agent.config import AgentConfig, AgentSection, load
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.common.texts import clean_name
from whitepanda.v1 import host_pb2, host_pb2_grpc

DEFAULT_CONFIG = Path("/etc/whitepanda/agent.toml")
_DEADLINE_S = 5.0


def find_config(config: Path | None, default: Path = DEFAULT_CONFIG) -> tuple[AgentConfig, Path | None]:
    """Load the configuration that was named, else the host's, else take the defaults.

    The `default` file is skipped if it is missing or cannot be read. Returns the configuration and its file, or None.

    Raises:
        ConfigError: a file was named and cannot be read, or what was read is wrong.

    """
    if config is not None:
        return load(config), config
    if default.is_file() and os.access(default, os.R_OK):
        return load(default), default
    return AgentConfig(agent=AgentSection()), None


def find_socket(path: Path | None, config: Path | None, default: Path = DEFAULT_CONFIG) -> Path:
    """Where the agent answers: `--socket`, else the configuration's `agent.socket`; see `find_config`."""
    return path if path is not None else Path(find_config(config, default)[0].agent.socket)


class Client:
    """Questions to one agent. Every method raises UnavailableError where it does not answer in time."""

    def __init__(self, stub: host_pb2_grpc.LocalHostStub, path: Path) -> None:
        self._stub = stub
        self._path = path

    def status(self) -> host_pb2.HostStatus:
        """The agent, its sources and its uplink."""
        return cast("host_pb2.HostStatus", self._ask(self._stub.GetStatus, host_pb2.GetStatusRequest()))

    def vms(self, metrics: Collection[str] = ()) -> host_pb2.ListVmsResponse:
        """All VMs, with those metrics; without names with all."""
        return cast("host_pb2.ListVmsResponse", self._ask(self._stub.ListVms, host_pb2.ListVmsRequest(metrics=metrics)))

    def explain(self, vm: str) -> host_pb2.VmExplanation:
        """One VM by name or UUID.

        Raises:
            InputError: no VM has that name or UUID; it names near ones.

        """
        request = host_pb2.ExplainVmRequest(vm=clean_name(vm))  # as the agent cleaned its name
        return cast("host_pb2.VmExplanation", self._ask(self._stub.ExplainVm, request))

    def moments(self, request: host_pb2.GetMomentsRequest) -> host_pb2.GetMomentsResponse:
        """The history on this host's disk at a time, and around it.

        Raises:
            InputError: no VM had the name or UUID to explain.

        """
        return cast("host_pb2.GetMomentsResponse", self._ask(self._stub.GetMoments, request))

    def _ask(self, method: Callable[..., Any], request: Message) -> object:
        try:
            return method(request, timeout=_DEADLINE_S)
        except grpc.RpcError as error:
            raise _refusal(error, self._path) from error


@contextmanager
def connect(path: Path) -> Iterator[Client]:
    """Connect to the agent that answers at `path`.

    Raises:
        UnavailableError: no agent answers there, or this user may not ask.

    """
    _knock(path)
    options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
    with grpc.insecure_channel(f"unix:{path.absolute()}", options=options) as channel:
        yield Client(host_pb2_grpc.LocalHostStub(channel), path)


def answers(path: Path) -> bool:
    """Whether an agent answers at `path`, as far as this user may ask."""
    try:
        _knock(path)
    except UnavailableError:
        return False
    return True


def _knock(path: Path) -> None:
    """Find out why there was no answer: gRPC only knows "unavailable"."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_DEADLINE_S)
            probe.connect(str(path))
    except OSError as error:
        raise UnavailableError(_why_silent(error, path)) from error


def _why_silent(error: OSError, path: Path) -> str:
    if isinstance(error, TimeoutError):
        return f"the agent at {path} is busy: no answer in {_DEADLINE_S:.0f} s; see its log"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission for {path}: become root, or join the group that owns it (ls -l {path})"
    if error.errno == errno.ECONNREFUSED and not path.is_socket():
        what = "a folder" if path.is_dir() else "a file"
        return f"{path} is {what}, not a socket; give the agent's socket with --socket"
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
        return f"no agent answers at {path}: start it with `systemctl start whitepanda-agent`, or give --socket"
    return f"cannot ask the agent at {path}: {error.strerror or error}; give --socket"


def _refusal(error: grpc.RpcError, path: Path) -> InputError | UnavailableError:
    # Errors of calls are both a RpcError and a Call; the stubs do not say so.
    call = cast("grpc.Call", error)
    code, detail = call.code(), call.details() or ""
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
        return InputError(detail)
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return UnavailableError(detail)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return UnavailableError(f"the agent at {path} did not answer in {_DEADLINE_S:.0f} s; see its log")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnavailableError(f"the agent at {path} runs another version and lacks this request")
    if "http/2" in detail.lower():  # gRPC's words where the answer is something else
        return UnavailableError(
            f"the server at {path} is not the agent: give the agent's socket with --socket, by default "
            f"{AgentSection().socket}"
        )
    return UnavailableError(f"the agent at {path} failed: {code.name.lower()}: {detail}; see its log")
