"""Who a certificate speaks for: its DNS alternative names count, and nothing else in it. Over real gRPC and HTTPS."""

import asyncio
import datetime as dt
import ipaddress
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from central.config import CentralConfig, CentralSection
from central.daemon import Central
from central.pki import issue, make_ca
from tests.support.spoken_streams import https, said_to_hello
from whitepanda.common.tls import TlsFiles, channel_credentials, peer_certificate
from whitepanda.v1 import fleet_pb2, fleet_pb2_grpc

OTHERS = {  # what a certificate may say beside DNS names; each names somebody whom central knows
    "email": lambda name: [x509.RFC822Name(name)],
    "uri": lambda name: [x509.UniformResourceIdentifier(name)],
    "address": lambda _name: [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))],
    "other_dns": lambda name: [x509.DNSName(f"{name}.example.net")],
    "common_name": lambda _name: [],
    "nul": lambda name: [x509.DNSName(f"{name}\0.example.net")],
    "control": lambda name: [x509.DNSName(f"{name}\n")],
}


def certificate(pki: Path, common_name: str, alternative: list[x509.GeneralName] | bytes) -> TlsFiles:
    """Make a client's certificate of the CA in `pki`, as another CA's tools might."""
    ca = x509.load_pem_x509_certificate((pki / "ca.crt").read_bytes())
    ca_key = serialization.load_pem_private_key((pki / "ca.key").read_bytes(), password=None)
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key()), critical=False)
    )
    if isinstance(alternative, bytes):
        names = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, alternative)
        builder = builder.add_extension(names, critical=False)
    elif alternative:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
    signed = builder.sign(ca_key, hashes.SHA256())  # type: ignore[arg-type]
    crt, key_file = pki / "client.crt", pki / "client.key"
    crt.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return TlsFiles(ca=str(pki / "ca.crt"), certificate=str(crt), key=str(key_file))


@pytest.fixture
async def central(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("central.web.server.is_loopback", lambda _host: False)  # so that HTTP asks for certificates
    make_ca(tmp_path / "pki")
    tls = issue(tmp_path / "pki", "central", server=True, addresses=["localhost", "127.0.0.1"])
    section = CentralSection(
        listen="localhost:0", http_listen="127.0.0.1:0", state_dir=str(tmp_path / "state"), tls=tls
    )
    central = Central(CentralConfig(central=section))
    await central.start()
    yield central
    await central.stop()


async def may_ask(central: Central, files: TlsFiles) -> str:
    """Return the status of an operator's question by gRPC."""
    async with grpc.aio.secure_channel(f"localhost:{central.port}", channel_credentials(files)) as channel:
        try:
            await fleet_pb2_grpc.FleetStub(channel).ListHosts(fleet_pb2.ListHostsRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return "OK"


async def http_status(central: Central, files: TlsFiles) -> int:
    """Return the status of an operator's question by HTTPS."""

    def ask() -> int:
        connection = https(central, files)
        connection.request("GET", "/v1/hosts")
        return connection.getresponse().status

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize("kind", OTHERS)
async def test_nothing_but_a_dns_name_makes_an_operator(central: Central, tmp_path: Path, kind: str) -> None:
    files = certificate(tmp_path / "pki", "operator", OTHERS[kind]("operator"))
    reported = await may_ask(central, files)
    assert reported.startswith("PERMISSION_DENIED: only operators may ask"), reported
    assert await http_status(central, files) == 403


@pytest.mark.long
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("host", ["h1", "importer"])
async def test_nothing_but_a_dns_name_makes_a_host_or_importer(
    central: Central, tmp_path: Path, kind: str, host: str
) -> None:
    files = certificate(tmp_path / "pki", host, OTHERS[kind](host))
    assert await said_to_hello(central, files, host) == "PERMISSION_DENIED"
    assert central.ingest.refused_streams == {"wrong_host": 1}


async def test_an_address_is_no_hosts_name(central: Central, tmp_path: Path) -> None:
    files = certificate(tmp_path / "pki", "127.0.0.1", OTHERS["address"](""))
    assert await said_to_hello(central, files, "127.0.0.1") == "PERMISSION_DENIED"


async def test_dns_names_count_whatever_stands_beside_them(central: Central, tmp_path: Path) -> None:
    names = [x509.RFC822Name("h2"), x509.DNSName("operator"), x509.DNSName("h1")]
    files = certificate(tmp_path / "pki", "h3", names)
    assert await may_ask(central, files) == "OK"
    assert await http_status(central, files) == 200
    assert await said_to_hello(central, files, "h1") == "welcome"
    for other in ("h2", "h3"):
        assert await said_to_hello(central, files, other) == "PERMISSION_DENIED"


async def test_a_certificate_without_dns_names_is_refused_with_the_reason(central: Central, tmp_path: Path) -> None:
    files = certificate(tmp_path / "pki", "operator", [])
    assert "(none: only DNS alternative names count)" in await may_ask(central, files)


@pytest.mark.parametrize(
    "names", [b"", b"\x30\x20\x82", b"\x30\x02\x82\x00", b"\x30\x04\x82\x82\xff\xff", b"\x30\x04\x82\x02h\xe9"]
)
def test_a_certificate_whose_names_cannot_be_read_has_none(tmp_path: Path, names: bytes) -> None:
    """Our clients refuse to load it, and so does OpenSSL; others may not."""
    make_ca(tmp_path)
    pem = Path(certificate(tmp_path, "h1", names).certificate).read_bytes()
    context = SimpleNamespace(auth_context=lambda: {"x509_pem_cert": [pem]})
    found, serial = peer_certificate(context)
    assert found == frozenset() and serial
