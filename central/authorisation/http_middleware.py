"""Authorisation of HTTP: every request passes here before its path is looked up."""

from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from central.authorisation.roles import HTTP_ROLE, Access
from whitepanda.common.tls import serial_text

#: Where the server puts the client's verified certificate, in the scope's state, as `ssl.SSLSocket.getpeercert` has it.
CERTIFICATE = "certificate"


def names_and_serial(certificate: Any) -> tuple[frozenset[str], str]:
    """Return the names and the serial of a client's certificate, as `CERTIFICATE` has it; none and "0" without one."""
    known = certificate or {}
    names = frozenset(value for kind, value in known.get("subjectAltName", ()) if kind == "DNS")
    return names, serial_text(known.get("serialNumber", "0"))


@dataclass
class Authorisation:
    """Answers 403 to callers without the role. Asked with each request: a browser keeps its connection for hours."""

    app: ASGIApp  # what answers the others
    access: Access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        names, serial = names_and_serial(scope.get("state", {}).get(CERTIFICATE))
        refusal = self.access.refusal(HTTP_ROLE, names, serial)
        answer = JSONResponse({"error": refusal[1]}, 403) if refusal else self.app
        await answer(scope, receive, send)
