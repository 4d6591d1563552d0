"""mTLS material: three PEM files, read whole, checked for the obvious, with errors that name the file."""

from __future__ import annotations

from pathlib import Path

import grpc
import msgspec

from whitepanda.common.errors import TlsError

__all__ = ["TlsFiles", "channel_credentials", "peer_names", "server_credentials"]


class TlsFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the PEM files are: the CA that the other side's certificate must be signed by, our certificate, our key."""

    ca: str = ""  # PEM file: who must have signed the other side's certificate
    certificate: str = ""  # PEM file: ours
    key: str = ""  # PEM file: ours, readable by nobody else


def _read(path: str, what: str) -> bytes:
    if not path:
        raise TlsError(
            f"tls.{what} is not set; `whitepanda pki` makes certificates, docs/operate.md tells how they reach hosts"
        )
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TlsError(f"tls.{what}: cannot read {path}: {error.strerror}") from error
    if b"-----BEGIN" not in data:
        raise TlsError(f"tls.{what}: {path} is not a PEM file")
    return data


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Credentials of a client (an agent, a tool).

    Raises:
        TlsError: a file is missing, unreadable or not PEM.

    """
    return grpc.ssl_channel_credentials(
        _read(files.ca, "ca"), _read(files.key, "key"), _read(files.certificate, "certificate")
    )


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials of central: clients must present a certificate of the CA.

    Raises:
        TlsError: a file is missing, unreadable or not PEM.

    """
    pair = (_read(files.key, "key"), _read(files.certificate, "certificate"))
    return grpc.ssl_server_credentials(
        [pair], root_certificates=_read(files.ca, "ca"), require_client_auth=True
    )


def peer_names(context: grpc.ServicerContext | grpc.aio.ServicerContext[object, object]) -> frozenset[str]:
    """Names in the client's verified certificate: alternative names, else the common name. Empty without TLS."""
    auth = context.auth_context()
    names = auth.get("x509_subject_alternative_name") or auth.get("x509_common_name") or ()
    return frozenset(name.decode("utf-8", "replace") for name in names if isinstance(name, bytes))
