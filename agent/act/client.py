"""Requests to the service over its unix socket; errors say what to do."""

import errno
import socket
from pathlib import Path

import msgspec

from agent.act.records import MAX_BYTES, ActError, Answer, RefusedError, Request
from agent.config import ActSection
from whitepanda.common.errors import UnavailableError

_DEADLINE_S = 60.0  # libvirt may be asked several times


def ask(path: Path, request: Request) -> Answer:
    """Send one request.

    UnavailableError: the service does not answer, or this user may not ask. RefusedError: the limits of the
    configuration forbid it. ActError: libvirt or resctrl fails.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_DEADLINE_S)
            connection.connect(str(path))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline(MAX_BYTES + 1)
            answer = msgspec.json.decode(line, type=Answer)
    except TimeoutError as error:
        raise UnavailableError(f"the service at {path} gave no answer in {_DEADLINE_S:g} s; see its log") from error
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            remedy = f"become root, or join the group that owns it (ls -l {path})"
            raise UnavailableError(f"no permission for {path}: {remedy}") from error
        if error.errno == errno.ECONNREFUSED and not path.is_socket():
            what = "a folder" if path.is_dir() else "a file"
            raise UnavailableError(
                f"{path} is {what}, not a socket; give the socket of `whitepanda act` with --socket"
            ) from error
        remedy = "start it with `systemctl start whitepanda-act`, or give --socket"
        raise UnavailableError(f"no service answers at {path}: {remedy}") from error
    except msgspec.ValidationError as error:
        raise UnavailableError(f"the service at {path} runs another version; restart it: {error}") from error
    except msgspec.DecodeError as error:
        if not line:
            raise UnavailableError(f"the service at {path} ended without an answer; see its log") from error
        raise UnavailableError(
            f"the server at {path} is not `whitepanda act`: give the socket of that service with --socket, by default "
            f"{ActSection().socket}"
        ) from error
    if answer.error:
        raise (RefusedError if answer.exit_code == RefusedError.exit_code else ActError)(answer.error)
    return answer
