"""A small certificate authority for sites that have none: ECDSA P-256, one CA, certificates for servers and clients.

A DNS subject alternative name is the peer's identity to central: a host's name for an agent, `operator` and `importer`
for tools. Keys are readable by their owner only; nothing is overwritten without `force`.

Every function raises TlsError: an option or file is wrong, missing, unreadable or cannot be written.
"""

import contextlib
import datetime as dt
import ipaddress
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from central.authorisation.revocation_list import read_serials
from whitepanda.common.errors import InputError, TlsError
from whitepanda.common.files.durable import replacing
from whitepanda.common.tls import TlsFiles, serial_text

CA_DAYS = 3650
LEAF_DAYS = 825
REVOKED = "revoked.txt"  # the list of revoked serials, beside the certificates

_BACKDATE = dt.timedelta(hours=1)  # for hosts whose clock is a little behind
_MAX_COMMON_NAME = 64
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_RESERVED = ("ca",)
_NAMED = 10  # names that an error lists
_PURPOSES = {ExtendedKeyUsageOID.SERVER_AUTH: "server", ExtendedKeyUsageOID.CLIENT_AUTH: "client"}
_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def make_ca(directory: Path | str, *, days: int = CA_DAYS, force: bool = False) -> Path:
    """Make a CA, `ca.crt` and `ca.key`, valid for `days` from now, and return the path of `ca.crt`.

    A missing folder is made with mode 0700. `force` replaces a CA; every certificate that it issued is then worthless.
    """
    directory = Path(directory)
    _check_days(days)
    key = ec.generate_private_key(ec.SECP256R1())
    # Subjects differ, so that a new CA is not confused with its predecessor.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"whitepanda CA {secrets.token_hex(4)}")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _store(directory, "ca", key, certificate, force=force)[0]


def issue(
    directory: Path | str,
    name: str,
    *,
    server: bool = False,
    addresses: Sequence[str] = (),
    days: int = LEAF_DAYS,
    force: bool = False,
) -> TlsFiles:
    """Issue `NAME.crt` and `NAME.key` beside the CA, and return the paths of the three files that this peer needs.

    `name` is the first DNS subject alternative name and the files' name; `addresses` are more of them, DNS names or IP
    addresses, by which clients reach a server. `server`: for central (serverAuth), else for a client (clientAuth).
    Valid for `days`, never longer than the CA. `force` replaces existing files.
    """
    directory = Path(directory)
    _check_days(days)
    names = _alternative_names(name, addresses)
    ca, ca_key = _load_ca(directory)
    builder = _valid_from_now(directory, ca, days)
    key = ec.generate_private_key(ec.SECP256R1())
    # A name above 64 characters is not a common name; the alternative names are then critical (RFC 5280, 4.2.1.6).
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if len(name) <= _MAX_COMMON_NAME else []
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    certificate = (
        builder.subject_name(x509.Name(subject))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=not subject)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    crt, key_path = _store(directory, name, key, certificate, force=force)
    return TlsFiles(ca=str(directory / "ca.crt"), certificate=str(crt), key=str(key_path))


def renew(directory: Path | str, name: str, *, days: int = LEAF_DAYS) -> "CertificateInfo":
    """Replace `NAME.crt` by one that is valid from now on, and return the certificate before.

    Names, purpose and key are the same, so `NAME.key` stays. Revoked certificates and those of another CA are refused.
    The new one is valid for `days`, never longer than the CA.
    """
    directory = Path(directory)
    _check_days(days)
    _alternative_names(name, ())
    path = directory / f"{name}.crt"
    ca, ca_key = _load_ca(directory)
    if not path.exists():
        raise TlsError(_none_of_that_name(directory, name))
    before, info = _read_certificate(path), describe(path)
    anew = f"`whitepanda pki {'central' if 'server' in info.purposes else 'host'} --force`"
    revoked = directory / REVOKED
    if revoked.exists() and info.serial in read_serials(revoked):
        raise TlsError(f"{path}: revoked in {revoked}, and its key may be stolen; make a new key with {anew}")
    try:
        before.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise TlsError(f"{path}: not issued by {directory / 'ca.crt'}; issue a new one with {anew}") from error
    builder = _valid_from_now(directory, ca, days).subject_name(before.subject).public_key(before.public_key())
    for extension in before.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    pem = builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    with _writing(path), replacing(path, mode=0o644) as file:
        file.write(pem)
    return info


def _none_of_that_name(directory: Path, name: str) -> str:
    bare = name.removesuffix(".crt")
    if bare != name:
        return f"{directory}: give the name without .crt ({bare})"
    known = sorted(path.stem for path in directory.glob("*.crt") if path.stem not in _RESERVED)
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return f"{directory}: no certificate of {name!r}; known: {', '.join(known[:_NAMED]) or 'none'}{more}"


def _valid_from_now(directory: Path, ca: x509.Certificate, days: int) -> x509.CertificateBuilder:
    """Begin a certificate that this CA issues and that never outlives it."""
    now = dt.datetime.now(dt.UTC)
    if ca.not_valid_after_utc <= now:
        raise TlsError(
            f"{directory / 'ca.crt'}: expired on {ca.not_valid_after_utc:%Y-%m-%d}; "
            "make a new CA with `whitepanda pki init --force`"
        )
    return (
        x509.CertificateBuilder()
        .issuer_name(ca.subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(min(now + dt.timedelta(days=days), ca.not_valid_after_utc))
    )


def revoke(certificate: Path, into: Path) -> bool:
    """Append a certificate's serial number to a list that central reads (`central.revoked_serials`).

    The certificate is a PEM file, not of a CA; a missing list is made. Returns whether the serial was added.
    """
    if certificate.is_dir():
        raise TlsError(f"{certificate}: a folder; give a certificate file, as in {certificate / 'NAME.crt'}")
    info = describe(certificate)
    if info.is_ca:
        raise TlsError(f"{certificate}: a CA; make a new one with `whitepanda pki init --force`, and new certificates")
    with _writing(into):
        before = into.read_text(encoding="utf-8") if into.exists() else ""
        if before and info.serial in read_serials(into):
            return False
        if before and not before.endswith("\n"):
            before += "\n"
        line = f"{info.serial}  # {', '.join(info.names)}, valid until {info.not_after:%Y-%m-%d}\n"
        with replacing(into, mode=0o644) as file:
            file.write((before + line).encode())
    return True


@dataclass(frozen=True, slots=True)
class CertificateInfo:
    """One certificate as `whitepanda pki show` prints it. `days_left` is negative after its end."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    purposes: tuple[str, ...]
    is_ca: bool
    not_before: dt.datetime
    not_after: dt.datetime
    days_left: int
    serial: str
    sha256: str


def describe(path: Path | str) -> CertificateInfo:
    """Read the first certificate of a PEM file."""
    certificate = _read_certificate(Path(path))
    names: list[str] = []
    purposes: list[str] = []
    is_ca = False
    for extension in certificate.extensions:
        value = extension.value
        if isinstance(value, x509.SubjectAlternativeName):
            names = [str(name.value) for name in value]
        elif isinstance(value, x509.ExtendedKeyUsage):
            purposes = [_PURPOSES.get(purpose, purpose.dotted_string) for purpose in value]
        elif isinstance(value, x509.BasicConstraints):
            is_ca = value.ca
    return CertificateInfo(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        names=tuple(names),
        purposes=tuple(purposes),
        is_ca=is_ca,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        days_left=(certificate.not_valid_after_utc - dt.datetime.now(dt.UTC)).days,
        serial=serial_text(certificate.serial_number),
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def _key_usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _USAGES})


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TlsError(f"{error.filename or path}: cannot write: {error.strerror}") from error


def _check_days(days: int) -> None:
    if not 1 <= days <= 36500:  # noqa: PLR2004 - said in the message
        raise InputError(f"--days must be 1 to 36500 (value {days})")


def _alternative_names(name: str, addresses: Sequence[str]) -> list[x509.GeneralName]:
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise InputError(
            f"a certificate's name is 1 to 253 letters, digits, '.', '-' or '_', not 'ca' (value {name!r})"
        )
    found: list[x509.GeneralName] = [x509.DNSName(name)]
    for address in addresses:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            if not _NAME.fullmatch(address):
                raise TlsError(
                    f"not an IP address or DNS name (value {address!r}); give it without port or brackets"
                ) from None
            found.append(x509.DNSName(address))
    return list(dict.fromkeys(found))


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise TlsError(f"{path}: cannot read: {error.strerror}") from error
    except ValueError as error:
        raise TlsError(f"{path}: not a PEM certificate") from error


def _load_ca(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    if not (directory / "ca.crt").exists():
        raise TlsError(f"{directory}: no CA here (ca.crt); make one with `whitepanda pki init {directory}`")
    certificate = _read_certificate(directory / "ca.crt")
    path = directory / "ca.key"
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise TlsError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise TlsError(f"{path}: not an unencrypted PEM private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise TlsError(f"{path}: not the key of {directory / 'ca.crt'}")
    return certificate, key


def _store(
    directory: Path, stem: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, *, force: bool
) -> tuple[Path, Path]:
    """Write both files or neither under their names; existing ones only with `force`."""
    crt_path, key_path = directory / f"{stem}.crt", directory / f"{stem}.key"
    if not force:
        for path in (crt_path, key_path):
            if path.exists():
                raise TlsError(f"{path} exists and is left alone; --force replaces it")
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    crt_pem = certificate.public_bytes(serialization.Encoding.PEM)
    with _writing(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(crt_path, mode=0o644) as crt_file, replacing(key_path, mode=0o600) as key_file:
            key_file.write(key_pem)
            crt_file.write(crt_pem)
            crt_file.flush()  # before the key takes its place
    return crt_path, key_path
