"""Asking central's fleet API from the command line; what goes wrong becomes one line with its remedy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from whitepanda.common.errors import InputError, TlsError, UnavailableError, WhitepandaError
from whitepanda.common.fleets import CentralAddress
from whitepanda.common.protocol import ERROR_FIELD
from whitepanda.common.tls import certificate_names, channel_credentials, is_of_another_ca, not_grpc, warnings
from whitepanda.v1 import fleet_pb2_grpc

_PAGE = 1000

#: Takes a method's name and its request, and returns the answer.
Asks = Callable[[str, Any], Any]


class NotKnownError(InputError):
    """Central does not know what was asked for."""


@contextmanager
def asking(address: CentralAddress, deadline_s: float) -> Iterator[Asks]:
    """Connect to central with an operator's certificate; raises TlsError. Each question has `deadline_s`."""
    options = [("grpc.ssl_target_name_override", address.server_name)] if address.server_name else []
    with grpc.secure_channel(address.central, channel_credentials(address.files, "--"), options=options) as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)

        def ask(method: str, request: Any) -> Any:
            try:
                return getattr(stub, method)(request, timeout=deadline_s)
            except grpc.RpcError as error:
                raise explained(error, address, method, deadline_s) from error

        yield ask


def ask_pages(ask: Asks, method: str, request: Any, rows: str, limit: int) -> tuple[list[Any], Any]:
    """Return up to `limit` rows of a list, page by page, and the last page; `rows` is the answers' field."""
    found: list[Any] = []
    while True:
        request.page_size = min(limit - len(found), _PAGE)
        page = ask(method, request)
        found += getattr(page, rows)
        request.page_token = page.next_page_token
        if len(found) >= limit or not page.next_page_token:
            return found, page


def explained(error: grpc.RpcError, address: CentralAddress, method: str, deadline_s: float) -> WhitepandaError:
    """Return the error that people see: what ended the call, where, and the remedy."""
    code, details = error.code(), " ".join((error.details() or "no details").split())
    where, files = f"central at {address.central}", address.files
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
        kind = NotKnownError if code is grpc.StatusCode.NOT_FOUND else InputError
        return kind(f"{where}: {details}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        remedy = "is it overloaded, stopped, or not central? See its log, and try again"
        return UnavailableError(f"{where} has not answered {method} for {deadline_s:g} s; {remedy}")
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return UnavailableError(f"{where} refuses the certificate {files.certificate}: {details}")
    if code is not grpc.StatusCode.UNAVAILABLE:
        return UnavailableError(f"{where}: {code.name}: {details}; see its log")
    if any(item.key == ERROR_FIELD for item in error.trailing_metadata() or ()):
        return UnavailableError(f"{where}: {details}")  # central is there, something that it needs is not
    return _unavailable(address, where, details)


def _unavailable(address: CentralAddress, where: str, details: str) -> WhitepandaError:
    """Return the error of a connection that fails: central is away, or a certificate does not pass."""
    lower, files = details.lower(), address.files
    if why := not_grpc(details):
        return UnavailableError(f"{where} {why}; see --central")
    if "errors resolving" in lower or "dns resolution" in lower:
        return UnavailableError(f"{where}: cannot resolve the host name: {details}; check --central")
    if why := _unfit(address, where, details):
        return TlsError(why)
    if "socket closed" in lower or "handshake" in lower:
        doubts = warnings(files, server=False, prefix="--")
        why = doubts[0] if doubts else f"it may not accept the certificate {files.certificate}"
        return TlsError(f"{where} closed the connection: {details}; {why}")
    return UnavailableError(f"cannot connect to {where}: {details}; check --central, and that central is running")


def _unfit(address: CentralAddress, where: str, details: str) -> str:
    """Return why central's certificate does not pass; "" if that is not the reason."""
    lower = details.lower()
    if is_of_another_ca(details):
        remedy = "is it of another fleet? Give the CA that issued it (--tls or --ca), or see --central"
        return f"the certificate of {where} is not of the CA in {address.files.ca}; {remedy}"
    if "hostname" in lower or "peer name" in lower:
        name = address.server_name or address.central.rpartition(":")[0].strip("[]")
        has = ", ".join(certificate_names(address.central, address.files))
        remedy = f"give --server-name with {'one of its names: ' + has if has else 'a name in it'}"
        return f"the certificate of {where} is not for the name {name!r}; {remedy}"
    if "verif" in lower:
        return f"the certificate of {where} does not pass: {details}; see --ca and --server-name"
    return ""
