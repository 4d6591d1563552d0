import datetime as dt
import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import threading

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

import central.pki as pki_module
from central.authorisation.revocation_list import read_serials
from central.cli.pki import app
from central.pki import describe, issue, make_ca, renew, revoke
from whitepanda.common.errors import InputError, TlsError


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    make_ca(folder)
    issue(folder, "central", server=True, addresses=["localhost", "127.0.0.1", "::1"])
    issue(folder, "compute-1")
    return folder


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.mark.parametrize(("name", "purpose"), [("central", "sslserver"), ("compute-1", "sslclient")])
def test_openssl_verifies_them_for_their_purpose_only(pki, name, purpose):
    openssl = shutil.which("openssl")
    assert openssl
    for tried in ("sslserver", "sslclient"):
        done = subprocess.run(
            [openssl, "verify", "-x509_strict", "-purpose", tried, "-CAfile", pki / "ca.crt", pki / f"{name}.crt"],
            check=False,
            capture_output=True,
        )
        assert (done.returncode == 0) == (tried == purpose), done


def test_what_the_certificates_say(pki):
    ca, server, client = (certificate(pki / f"{name}.crt") for name in ("ca", "central", "compute-1"))
    basic = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    for leaf, purpose in ((server, ExtendedKeyUsageOID.SERVER_AUTH), (client, ExtendedKeyUsageOID.CLIENT_AUTH)):
        assert list(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]
        assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        leaf.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["central", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    names = client.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["compute-1"]
    assert len({c.serial_number for c in (ca, server, client)}) == 3
    assert min(c.serial_number.bit_length() for c in (ca, server, client)) > 64
    assert client.public_key().curve.name == "secp256r1"


def test_keys_are_their_owners_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        make_ca(tmp_path / "new")
        issue(tmp_path / "new", "h")
    finally:
        os.umask(before)
    mode = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "new").iterdir()}
    assert mode == {"ca.key": 0o600, "h.key": 0o600, "ca.crt": 0o644, "h.crt": 0o644}
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_nothing_is_overwritten_without_force(tmp_path):
    make_ca(tmp_path)
    issue(tmp_path, "h")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(TlsError, match=r"ca\.crt exists and is left alone; --force replaces it"):
        make_ca(tmp_path)
    with pytest.raises(TlsError, match=r"h\.crt exists"):
        issue(tmp_path, "h")
    (tmp_path / "h.crt").unlink()
    with pytest.raises(TlsError, match=r"h\.key exists"):
        issue(tmp_path, "h")
    issue(tmp_path, "h", force=True)
    assert (tmp_path / "h.key").read_bytes() != before[tmp_path / "h.key"]
    assert {file.name for file in tmp_path.iterdir()} == {"ca.crt", "ca.key", "h.crt", "h.key"}


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "ca", "a b", "x" * 254, "-x", "ü"])
def test_bad_names_are_refused(pki, name):
    with pytest.raises(InputError, match="a certificate's name is"):
        issue(pki, name)


def test_bad_addresses_and_days_are_refused(pki):
    with pytest.raises(TlsError, match=r"value '10\.0\.0\.1:7443'.*without port"):
        issue(pki, "c2", server=True, addresses=["10.0.0.1:7443"])
    with pytest.raises(InputError, match="days must be 1 to 36500"):
        issue(pki, "c2", days=0)


def test_no_ca_or_a_broken_one_gets_the_remedy(tmp_path, pki):
    with pytest.raises(TlsError, match=r"no CA here .* `whitepanda pki init"):
        issue(tmp_path, "h")
    shutil.copy(pki / "ca.crt", tmp_path)
    with pytest.raises(TlsError, match=r"ca\.key: cannot read"):
        issue(tmp_path, "h")
    shutil.copy(pki / "central.key", tmp_path / "ca.key")
    with pytest.raises(TlsError, match=r"ca\.key: not the key of"):
        issue(tmp_path, "h")
    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(TlsError, match=r"ca\.key: not an unencrypted PEM"):
        issue(tmp_path, "h")
    assert not (tmp_path / "h.crt").exists()


def test_a_leaf_never_outlives_its_ca_and_an_expired_ca_issues_nothing(tmp_path, monkeypatch):
    make_ca(tmp_path, days=10)
    issue(tmp_path, "h", days=500)
    assert certificate(tmp_path / "h.crt").not_valid_after_utc == certificate(tmp_path / "ca.crt").not_valid_after_utc

    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=11)

    class Later(dt.datetime):
        @classmethod
        def now(cls, _tz=None):
            return later

    monkeypatch.setattr(pki_module.dt, "datetime", Later)
    with pytest.raises(TlsError, match="expired on"):
        issue(tmp_path, "h2")


def test_a_name_longer_than_a_common_name_works(tmp_path):
    make_ca(tmp_path)
    name = "compute." + "x" * 90
    issue(tmp_path, name)
    names = certificate(tmp_path / f"{name}.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.critical
    assert names.value.get_values_for_type(x509.DNSName) == [name]


def handshake(server_files, client_files, server_name):
    """A real TLS handshake over a socket pair; returns the client's names as the server sees them."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(server_files.certificate, server_files.key)
    server.load_verify_locations(server_files.ca)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(client_files.ca)
    client.load_cert_chain(client_files.certificate, client_files.key)
    left, right = socket.socketpair()
    outcome = []

    def serve():
        try:
            with server.wrap_socket(left, server_side=True) as connection:
                outcome.append(connection.getpeercert()["subjectAltName"])
                connection.sendall(b"x")
        except (ssl.SSLError, OSError) as error:
            outcome.append(error)
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(right, server_hostname=server_name) as connection:
            connection.recv(1)
    finally:
        right.close()
        thread.join(10)
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def test_real_handshakes(pki, tmp_path):
    server, client = (issue(pki, name, server=name == "s", addresses=["127.0.0.1"], force=True) for name in "sc")
    assert handshake(server, client, "127.0.0.1") == (("DNS", "c"), ("IP Address", "127.0.0.1"))
    with pytest.raises(ssl.SSLCertVerificationError, match=r"Hostname mismatch|not valid for"):
        handshake(server, client, "other.example.org")
    with pytest.raises(ssl.SSLError):  # a client's certificate is no server's
        handshake(client, client, "127.0.0.1")
    with pytest.raises(ssl.SSLError):  # nor the other way round
        handshake(server, server, "127.0.0.1")
    make_ca(tmp_path)
    stranger = issue(tmp_path, "c", addresses=["127.0.0.1"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, stranger, "127.0.0.1")


def test_show_reports_names_purpose_and_end(pki):
    info = describe(pki / "central.crt")
    assert info.names == ("central", "localhost", "127.0.0.1", "::1")
    assert info.purposes == ("server",)
    assert not info.is_ca
    assert info.days_left in (pki_module.LEAF_DAYS - 1, pki_module.LEAF_DAYS)
    assert describe(pki / "ca.crt").is_ca
    with pytest.raises(TlsError, match="not a PEM certificate"):
        describe(pki / "central.key")


def test_central_may_have_several_names(tmp_path):
    run = CliRunner().invoke
    run(app, ["init", str(tmp_path)], catch_exceptions=False)
    names = ["--name", "c1", "--name", "central.example.net", "--address", "10.0.0.1"]
    assert run(app, ["central", str(tmp_path), *names], catch_exceptions=False).exit_code == 0
    assert describe(tmp_path / "c1.crt").names == ("c1", "central.example.net", "10.0.0.1")


def test_show_takes_a_folder(tmp_path):
    run = CliRunner().invoke
    run(app, ["init", str(tmp_path)], catch_exceptions=False)
    run(app, ["host", str(tmp_path), "b", "a"], catch_exceptions=False)
    shown = run(app, ["show", "--json", str(tmp_path)], catch_exceptions=False)
    assert [one["file"] for one in json.loads(shown.stdout)] == [
        str(tmp_path / f"{name}.crt") for name in ("ca", "a", "b")
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(TlsError, match=r"empty: no certificates here \(\*\.crt\); name a file"):
        run(app, ["show", str(tmp_path / "empty")], catch_exceptions=False)


def test_the_commands(tmp_path):
    run = CliRunner().invoke
    folder = str(tmp_path / "pki")
    assert run(app, ["init", folder]).exit_code == 0
    assert (
        run(app, ["central", folder, "--name", "c1", "--address", "10.0.0.1", "--address", "c.example"]).exit_code == 0
    )
    assert run(app, ["host", folder, "h1", "h2"]).exit_code == 0
    assert run(app, ["operator", folder]).exit_code == 0
    assert run(app, ["importer", folder]).exit_code == 0
    assert describe(tmp_path / "pki" / "c1.crt").names == ("c1", "10.0.0.1", "c.example")
    assert describe(tmp_path / "pki" / "h2.crt").purposes == ("client",)
    assert describe(tmp_path / "pki" / "operator.crt").names == ("operator",)
    shown = run(app, ["show", "--json", f"{folder}/c1.crt", f"{folder}/importer.crt"])
    assert [row["names"] for row in json.loads(shown.stdout)] == [["c1", "10.0.0.1", "c.example"], ["importer"]]
    assert "days left" in run(app, ["show", f"{folder}/c1.crt"]).stdout
    again = run(app, ["host", folder, "h1"])
    assert isinstance(again.exception, TlsError)


# -- renewing and revoking


def extensions(of):
    return {(each.oid, each.critical, each.value) for each in of.extensions}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("central", {"server": True, "addresses": ["central.example", "10.0.0.1"]}),
        ("node1", {"addresses": ["node1.example"]}),
        ("compute." + "x" * 90, {}),
    ],
)
def test_a_renewed_certificate_is_the_same_but_for_serial_and_time(tmp_path, name, options):
    make_ca(tmp_path)
    files = issue(tmp_path, name, days=10, **options)
    before, key = certificate(tmp_path / f"{name}.crt"), (tmp_path / f"{name}.key").read_bytes()
    (tmp_path / f"{name}.key").unlink()  # it may be on its host only
    reported = renew(tmp_path, name, days=100)
    after = certificate(tmp_path / f"{name}.crt")
    assert (reported.serial, reported.not_after) == (f"{before.serial_number:x}", before.not_valid_after_utc)
    assert after.serial_number != before.serial_number
    assert 99 <= describe(files.certificate).days_left <= 100
    assert (after.subject, after.issuer, extensions(after)) == (before.subject, before.issuer, extensions(before))
    after.verify_directly_issued_by(certificate(tmp_path / "ca.crt"))
    (tmp_path / f"{name}.key").write_bytes(key)
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(files.certificate, files.key)
    assert stat.S_IMODE((tmp_path / f"{name}.crt").stat().st_mode) == 0o644
    assert len(list(tmp_path.iterdir())) == 4, "nothing is left beside it"


def test_a_renewed_certificate_never_outlives_its_ca(tmp_path):
    make_ca(tmp_path, days=50)
    issue(tmp_path, "h", days=10)
    renew(tmp_path, "h", days=500)
    assert describe(tmp_path / "h.crt").not_after == describe(tmp_path / "ca.crt").not_after


def test_what_cannot_be_renewed_is_left_alone(tmp_path):
    make_ca(tmp_path)
    issue(tmp_path, "h")
    before = (tmp_path / "h.crt").read_bytes()
    with pytest.raises(TlsError, match=r": no certificate of 'none'; known: h$"):
        renew(tmp_path, "none")
    with pytest.raises(TlsError, match=r": give the name without \.crt \(h\)$"):
        renew(tmp_path, "h.crt")
    with pytest.raises(InputError, match=r"not 'ca' \(value 'ca'\)"):
        renew(tmp_path, "ca")
    with pytest.raises(InputError, match="days must be"):
        renew(tmp_path, "h", days=0)
    make_ca(tmp_path, force=True)
    with pytest.raises(TlsError, match=r"h\.crt: not issued by .*ca\.crt; .*`whitepanda pki host --force`"):
        renew(tmp_path, "h")
    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(TlsError, match=r"ca\.key: not an unencrypted PEM"):
        renew(tmp_path, "h")
    assert (tmp_path / "h.crt").read_bytes() == before


def test_a_revoked_certificate_is_not_renewed_with_its_key(tmp_path):
    make_ca(tmp_path)
    issue(tmp_path, "h")
    issue(tmp_path, "other")
    before = (tmp_path / "h.crt").read_bytes()
    revoke(tmp_path / "h.crt", tmp_path / "revoked.txt")
    with pytest.raises(TlsError, match=r"h\.crt: revoked .* make a new key with `whitepanda pki host --force`$"):
        renew(tmp_path, "h")
    assert (tmp_path / "h.crt").read_bytes() == before
    renew(tmp_path, "other")
    issue(tmp_path, "h", force=True)
    renew(tmp_path, "h")


def test_a_folder_is_no_certificate_to_revoke(tmp_path):
    with pytest.raises(TlsError, match=r": a folder; give a certificate file, as in .*/NAME\.crt$"):
        revoke(tmp_path, tmp_path / "revoked.txt")
    assert not (tmp_path / "revoked.txt").exists()


def test_the_commands_renew_and_revoke(tmp_path):
    run = CliRunner().invoke
    make_ca(tmp_path)
    for name in ("h1", "h2"):
        issue(tmp_path, name, days=10)
    serials = [describe(tmp_path / f"{name}.crt").serial for name in ("h1", "h2")]
    done = run(app, ["renew", str(tmp_path), "h1", "h2", "--days", "90"])
    assert done.exit_code == 0
    for line, serial, name in zip(done.stdout.splitlines(), serials, ("h1", "h2"), strict=True):
        info = describe(tmp_path / f"{name}.crt")
        assert info.days_left >= 89
        assert f"valid until {info.not_after:%Y-%m-%d} (before: " in line and f"serial {serial}" in line
    file = tmp_path / "revoked.txt"
    for names in (["h1"], ["h1", "h2"]):
        assert run(app, ["revoke", *(str(tmp_path / f"{name}.crt") for name in names)]).exit_code == 0
        assert read_serials(file) == {describe(tmp_path / f"{name}.crt").serial for name in names}
    assert len(file.read_text().splitlines()) == 2, "each once"
    file.write_text("# by hand\nabc")
    assert run(app, ["revoke", str(tmp_path / "h2.crt"), "--list", str(file)]).exit_code == 0
    assert read_serials(file) == {"abc", describe(tmp_path / "h2.crt").serial}
    assert file.read_text().startswith("# by hand\nabc\n")
    file.write_text("nonsense\n")
    refused = run(app, ["revoke", str(tmp_path / "h1.crt")])
    assert isinstance(refused.exception, TlsError) and "line 1" in str(refused.exception)
    assert file.read_text() == "nonsense\n"
    refused = run(app, ["revoke", str(tmp_path / "ca.crt")])
    assert isinstance(refused.exception, TlsError) and "a CA" in str(refused.exception)
