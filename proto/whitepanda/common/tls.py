"""mTLS material: three PEM files, checked before they are used, with errors that name the file and the remedy.

gRPC does not report a problem with the own certificate: the other side just breaks off. So it is checked first, with
the standard library: a handshake in memory against a verifier like the other side's.
"""

import contextlib
import datetime as dt
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import msgspec

from whitepanda.common.errors import TlsError

#: When a certificate's end becomes a warning, and when critical. The alerts have the same days.
CERTIFICATE_WARN_DAYS, CERTIFICATE_CRITICAL_DAYS = 30, 7

_FILES = ("ca", "certificate", "key")
_ISSUE = {
    "uplink.tls": "issue a new one with `whitepanda pki host`",
    "--": "issue a new one with `whitepanda pki operator` or `whitepanda pki importer`",
}
_Validity = tuple[dt.datetime, dt.datetime]
_DER_VERSION, _DER_EXTENSIONS, _DER_DNS_NAME, _DER_UTC_TIME = 0xA0, 0xA3, 0x82, 0x17
_ALTERNATIVE_NAME = bytes((0x55, 0x1D, 0x11))  # 2.5.29.17
# OpenSSL's X509_V_ERR_*.
_NOT_YET_VALID, _EXPIRED, _WRONG_PURPOSE = 9, 10, 26
_ASK_S = 5.0
_HANDSHAKE_TURNS = 8  # a handshake in memory takes three


class TlsFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Paths of the PEM files: the CA that must have signed the other side's certificate, own certificate, own key."""

    ca: str = ""  # PEM file: the CA that must have signed the other side's certificate
    certificate: str = ""  # PEM file: the own certificate
    key: str = ""  # PEM file: its key, readable by its owner only


@dataclass(frozen=True, slots=True)
class _Problem:
    """`certain`: it cannot work. Else it may: the other side may know another CA, or have another clock."""

    text: str
    certain: bool = True


class OwnCertificate:
    """The end of the own certificate, read again when its file changes; a new one counts once its key is there too."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._known: list[tuple[int, int, int]] = []
        self._expiry_unix_s: float | None = None

    def expiry_unix_s(self) -> float | None:
        """Return the end in seconds since 1970; None if none could be read yet. Some microseconds."""
        now = stamps(self._files)
        if now != self._known:
            self._known = now
            # Not `_usable`: the end of an expired certificate must be known, too.
            with contextlib.suppress(OSError, ValueError):
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.load_cert_chain(self._files.certificate, self._files.key, password="")
                if validity := _validity(self._files.certificate):
                    self._expiry_unix_s = validity[1].timestamp()
        return self._expiry_unix_s


def setting(prefix: str, what: str) -> str:
    """Return the full name of one of the three settings: `uplink.tls.key`, or a tool's option `--cert`."""
    tool = "--cert" if what == "certificate" else f"--{what}"
    return tool if prefix == "--" else f"{prefix}.{what}"


def problems(files: TlsFiles, *, server: bool, prefix: str) -> list[str]:
    """Return certain and possible problems of the three files, one line each; unset ones too.

    `server`: the files are central's. `prefix` of their settings: "uplink.tls", "central.tls", or "--" for a tool.
    """
    return [problem.text for problem in _examine(files, server=server, prefix=prefix)]


def warnings(files: TlsFiles, *, server: bool, prefix: str) -> list[str]:
    """Return the `problems` that only the other side can decide on; connecting may still work."""
    return [problem.text for problem in _examine(files, server=server, prefix=prefix) if not problem.certain]


def channel_credentials(files: TlsFiles, prefix: str = "uplink.tls") -> grpc.ChannelCredentials:
    """Return a client's credentials (an agent's, a tool's). Reads the files again; some milliseconds.

    TlsError: the first certain one of `problems`: unreadable, not PEM, not a pair, expired, a server's.
    """
    ca, certificate, key = _usable(files, server=False, prefix=prefix)
    return grpc.ssl_channel_credentials(ca, key, certificate)


def server_credentials(
    files: TlsFiles, prefix: str = "central.tls", on_change: Callable[[str], None] | None = None
) -> grpc.ServerCredentials:
    """Return central's credentials: clients must present a certificate of the CA.

    The next handshake uses changed files, without a restart; the old ones still apply if the new cannot work.
    `on_change` is called in a gRPC thread after each change, with "" or why the files were not taken. TlsError: as
    `channel_credentials`; here a client's certificate is wrong.
    """
    current, lock = stamps(files), threading.Lock()

    def read() -> grpc.ServerCertificateConfiguration:
        ca, certificate, key = _usable(files, server=True, prefix=prefix)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=ca)

    def fetch() -> Any:  # None: unchanged, which the stubs do not know
        nonlocal current
        with lock:  # handshakes of several threads
            now = stamps(files)
            if now == current:
                return None
            current = now
            problem, configuration = "", None
            try:
                configuration = read()
            except TlsError as error:  # half written, perhaps: the rest will change the files again
                problem = str(error)
        if on_change is not None:
            on_change(problem)
        return configuration

    return grpc.dynamic_ssl_server_credentials(read(), fetch, require_client_authentication=True)


def not_grpc(details: str) -> str:
    """Return that a port is not gRPC's, from a handshake's error of gRPC or OpenSSL; "" if it may be."""
    for sign, how in (("wrong version number", "without TLS"), ("alpn", "by TLS but not HTTP/2")):
        if sign in details.lower().replace("_", " "):
            remedy = "take the port of central.listen, not of central.http_listen"
            return f"answers {how}, so it is not a gRPC port; {remedy}"
    return ""


def is_of_another_ca(details: str) -> bool:
    """Whether OpenSSL's message means that the other side's certificate is of another CA."""
    details = details.lower().replace("-", " ")
    return "unable to get local issuer certificate" in details or "self signed certificate" in details


def certificate_names(address: str, files: TlsFiles) -> list[str]:
    """Return the names in the certificate at host:port; none without an answer or with another CA."""
    host, _, port = address.rpartition(":")
    try:
        context = client_context(files)
        context.check_hostname = False  # the name is the question
        plain = socket.create_connection((host.strip("[]"), int(port)), _ASK_S)
        with plain, context.wrap_socket(plain) as stream:
            found: Any = stream.getpeercert() or {}
    except (OSError, ValueError):
        return []
    return [name for kind, name in found.get("subjectAltName", ()) if kind in {"DNS", "IP Address"}]


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for gRPC over TLS with the three files; OSError or ValueError if they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(files.ca)
    context.load_cert_chain(files.certificate, files.key, password="")
    return context


def stamps(files: TlsFiles) -> list[tuple[int, int, int]]:
    """Return what changes when a file is written or replaced; nothing for a missing one."""
    found = []
    for path in filter(None, (getattr(files, what) for what in _FILES)):
        with contextlib.suppress(OSError):
            status = Path(path).stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return found


def _usable(files: TlsFiles, *, server: bool, prefix: str) -> tuple[bytes, bytes, bytes]:
    if found := next((one for one in _examine(files, server=server, prefix=prefix) if one.certain), None):
        raise TlsError(found.text)
    try:
        ca, certificate, key = (Path(getattr(files, what)).read_bytes() for what in _FILES)
    except OSError as error:
        raise TlsError(f"{setting(prefix, 'certificate')}: cannot read {error.filename}: {error.strerror}") from error
    return ca, certificate, key


def _examine(files: TlsFiles, *, server: bool, prefix: str) -> Iterator[_Problem]:
    if unreadable := [problem for what in _FILES if (problem := _unreadable(files, what, prefix))]:
        yield from unreadable
        return
    ca, certificate, key = (f"{setting(prefix, what)}: {getattr(files, what)}" for what in _FILES)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(files.ca)
    except (ssl.SSLError, OSError) as error:
        yield _Problem(f"{ca} holds no usable certificate ({reason_text(error)})")
        return
    try:
        # The empty password keeps OpenSSL from asking for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(files.certificate, files.key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        if b"ENCRYPTED" in Path(files.key).read_bytes():
            yield _Problem(f"{key} is encrypted, and its passphrase cannot be asked for; give it without one")
        else:
            pair = f"{certificate} and {setting(prefix, 'key')}: {files.key}"
            remedy = "`whitepanda pki` makes matching ones"
            yield _Problem(f"{pair} cannot be used together ({reason_text(error)}); {remedy}")
        return
    try:
        yield from _verify(files, server=server, prefix=prefix)
    except OSError as error:  # TLS errors too; the files may be changing now
        yield _Problem(f"{certificate} cannot be verified ({reason_text(error)})", certain=False)


def _unreadable(files: TlsFiles, what: str, prefix: str) -> _Problem | None:
    path, name = getattr(files, what), setting(prefix, what)
    if not path:
        remedy = "`whitepanda pki` makes certificates, docs/operate.md says how they reach hosts"
        return _Problem(f"{name} is not set; {remedy}")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        return _Problem(f"{name}: cannot read {path}: {error.strerror}")
    return None if b"-----BEGIN" in data else _Problem(f"{name}: {path} is not a PEM file")


def _verify(files: TlsFiles, *, server: bool, prefix: str) -> Iterator[_Problem]:
    """Verify the certificate as the other side will: first by itself, then against the CA."""
    own = f"{setting(prefix, 'certificate')}: {files.certificate}"
    issue = "issue a new one with `whitepanda pki central`" if server else _ISSUE.get(prefix, _ISSUE["uplink.tls"])
    if (error := _refusal(files, files.certificate, server=server)) is not None:
        yield _own_problem(own, error, _validity(files.certificate), server=server, issue=issue)
        if error.verify_code in (_EXPIRED, _NOT_YET_VALID, _WRONG_PURPOSE):
            return  # verifying against the CA would say the same again
    if (error := _refusal(files, files.ca, server=server)) is None:
        return
    ca = f"{setting(prefix, 'ca')} ({files.ca})"
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        text = f"the CA in {ca} does not pass: {error.verify_message}"
        yield _Problem(f"{text}; check this host's clock, make a new CA with `whitepanda pki init --force`")
        return
    others = "agents" if server else "central"
    text = f"{own} is not signed by the CA in {ca} ({error.verify_message})"
    yield _Problem(f"{text}; {others} will not accept it unless set up with its CA; {issue}", certain=False)


def _own_problem(
    own: str, error: ssl.SSLCertVerificationError, validity: _Validity | None, *, server: bool, issue: str
) -> _Problem:
    code = error.verify_code
    start, end = (f" {moment:%Y-%m-%d %H:%M} UTC" for moment in validity) if validity else ("", "")
    if code == _EXPIRED:
        return _Problem(f"{own} expired{' on' if end else ''}{end}, renew it with `whitepanda pki renew`")
    if code == _NOT_YET_VALID:
        text = f"{own} is not yet valid{', only from' if start else ''}{start}"
        return _Problem(f"{text}; is this host's clock right ({dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC)?", False)
    if code == _WRONG_PURPOSE:
        wrong = "not one for servers" if server else "a server's certificate, not for clients"
        return _Problem(f"{own} is {wrong} (extended key usage); {issue}")
    return _Problem(f"{own} does not pass: {error.verify_message}; {issue}", certain=False)


def _refusal(files: TlsFiles, trusted: str, *, server: bool) -> ssl.SSLCertVerificationError | None:
    """Return why a verifier that trusts `trusted` refuses the own certificate, in a handshake in memory."""
    kinds = (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
    own, verifying = (ssl.SSLContext(kind) for kind in (kinds if server else reversed(kinds)))
    for context in (own, verifying):
        context.check_hostname = False
    own.verify_mode = ssl.CERT_NONE  # the verifier's certificate does not matter
    own.load_cert_chain(files.certificate, files.key, password="")
    verifying.load_verify_locations(trusted)
    verifying.verify_mode = ssl.CERT_REQUIRED
    verifying.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # only an intermediate CA may be trusted
    if not server:
        verifying.load_cert_chain(files.certificate, files.key, password="")  # a server has to have one
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        (verifying if server else own).wrap_bio(back, there, server_side=False),
        (own if server else verifying).wrap_bio(there, back, server_side=True),
    ]
    for _ in range(_HANDSHAKE_TURNS):
        for side in tuple(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error
        if not sides:
            return None
    raise RuntimeError("a TLS handshake in memory does not end")


def reason_text(error: Exception) -> str:
    """Return the reason of a TLS or OS error, in lower case."""
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error).lower().replace("_", " ")


def _validity(path: str) -> _Validity | None:
    """Return the validity of the first certificate in a PEM file; None if it cannot be read.

    The standard library shows it only for certificates that pass verification.
    """
    try:
        signed = _signed(Path(path).read_text(encoding="ascii", errors="replace"))
        start, end = (_time(tag, value) for tag, value in _parts(signed[3][1]))
    except (OSError, ValueError, IndexError):
        return None
    return start, end


def _signed(pem: str) -> list[tuple[int, bytes]]:
    """Return the signed parts of the first certificate in a PEM text: serial, algorithm, issuer, validity, ...

    RFC 5280, 4.1: the parts of TBSCertificate, after an optional version.
    """
    first = pem[pem.index("-----BEGIN CERTIFICATE-----") : pem.index("-----END CERTIFICATE-----") + 25]
    signed = _parts(_parts(_parts(ssl.PEM_cert_to_DER_cert(first))[0][1])[0][1])
    return signed[1:] if signed[0][0] == _DER_VERSION else signed


def _parts(data: bytes) -> list[tuple[int, bytes]]:
    """Split DER into (tag, content)."""
    found = []
    at = 0
    while at < len(data):
        tag, size, begin = data[at], data[at + 1], at + 2
        if size & 0x80:
            begin += size & 0x7F
            size = int.from_bytes(data[at + 2 : begin])
        found.append((tag, data[begin : begin + size]))
        at = begin + size
    if at > len(data):
        raise ValueError("DER that is cut off")
    return found


def _time(tag: int, value: bytes) -> dt.datetime:
    text = value.decode("ascii")
    if tag == _DER_UTC_TIME:  # two digits of the year, from 1950 on
        text = ("19" if text >= "50" else "20") + text
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC)


def serial_text(serial: int | str) -> str:
    """Return a serial number as `whitepanda pki show` prints it: hexadecimal, lower case, no leading zeros."""
    return f"{int(serial, 16) if isinstance(serial, str) else serial:x}"


def peer_certificate(context: grpc.ServicerContext | grpc.aio.ServicerContext[Any, Any]) -> tuple[frozenset[str], str]:
    """Return the DNS alternative names of the client's verified certificate, and its serial (`serial_text`).

    Nothing else in a certificate is an identity: CAs check e-mail addresses, URIs and common names by other rules.
    gRPC cuts a name at a NUL, so names are read from the certificate; only printable ASCII counts. Without TLS there
    are no names, and the serial is "".
    """
    for pem in context.auth_context().get("x509_pem_cert") or ():
        if isinstance(pem, bytes):
            signed = _signed(pem.decode("ascii"))
            serial = serial_text(int.from_bytes(signed[0][1]))
            try:
                names = [name.decode() for name in _alternative_names(signed) if name.isascii()]
            except (IndexError, ValueError):  # the CA signed malformed names
                names = []
            return frozenset(name for name in names if name and name.isprintable()), serial
    return frozenset(), ""


def _alternative_names(signed: list[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield the DNS names of RFC 5280, 4.2.1.6."""
    for extensions in (value for tag, value in signed if tag == _DER_EXTENSIONS):
        for _, extension in _parts(_parts(extensions)[0][1]):
            (_, kind), *_, (_, value) = _parts(extension)
            if kind == _ALTERNATIVE_NAME:
                yield from (name for tag, name in _parts(_parts(value)[0][1]) if tag == _DER_DNS_NAME)


def shown_names(names: Iterable[str]) -> str:
    """Return a certificate's names for an error, or why there are none."""
    return ", ".join(sorted(names)) or "none: only DNS alternative names count"
