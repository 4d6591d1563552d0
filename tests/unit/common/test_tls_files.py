"""The check of the TLS files: each defect is one line that names the setting, the file and the remedy."""

import datetime as dt
import types

import pytest
from cryptography.hazmat.primitives import serialization

from central import pki
from whitepanda.common.errors import TlsError
from whitepanda.common.tls import (
    OwnCertificate,
    TlsFiles,
    channel_credentials,
    problems,
    server_credentials,
    setting,
    warnings,
)


def issue_at(monkeypatch, offset, *arguments, **options):
    """Issue as if it were `offset` from now."""

    class Moved(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return dt.datetime.now(tz) + offset

    moved = types.SimpleNamespace(datetime=Moved, timedelta=dt.timedelta, UTC=dt.UTC)
    with monkeypatch.context() as patch:
        patch.setattr(pki, "dt", moved)
        return pki.issue(*arguments, **options)


@pytest.fixture
def ca(tmp_path):
    folder = tmp_path / "pki"
    pki.make_ca(folder)
    return folder


def client_problem(files):
    """The one line, which must be an error too."""
    (line,) = problems(files, server=False, prefix="uplink.tls")
    with pytest.raises(TlsError) as caught:
        channel_credentials(files)
    assert str(caught.value) == line
    assert "\n" not in line
    return line


def test_good_files_have_no_problems(ca):
    client, server = pki.issue(ca, "host-1"), pki.issue(ca, "central", server=True)
    assert problems(client, server=False, prefix="uplink.tls") == []
    assert problems(server, server=True, prefix="central.tls") == []
    channel_credentials(client)
    server_credentials(server)


def test_an_expired_certificate(ca, monkeypatch):
    files = issue_at(monkeypatch, -dt.timedelta(days=3), ca, "host-1", days=1)
    end = pki.describe(files.certificate).not_after
    assert client_problem(files) == (
        f"uplink.tls.certificate: {files.certificate} expired on {end:%Y-%m-%d %H:%M} UTC, "
        "renew it with `whitepanda pki renew`"
    )


def test_an_expired_certificate_of_another_ca_is_reported_to_be_expired(ca, tmp_path, monkeypatch):
    pki.make_ca(tmp_path / "other")
    theirs = issue_at(monkeypatch, -dt.timedelta(days=3), tmp_path / "other", "host-1", days=1)
    files = TlsFiles(ca=str(ca / "ca.crt"), certificate=theirs.certificate, key=theirs.key)
    assert "expired on" in client_problem(files)


def test_a_certificate_that_is_not_yet_valid_may_mean_a_wrong_clock_here(ca, monkeypatch):
    files = issue_at(monkeypatch, dt.timedelta(days=3), ca, "host-1", days=1)
    start = pki.describe(files.certificate).not_before
    # Each line ends with its own minute of this host's clock.
    for (line,) in (
        problems(files, server=False, prefix="uplink.tls"),
        warnings(files, server=False, prefix="uplink.tls"),
    ):
        assert f"{files.certificate} is not yet valid, only from {start:%Y-%m-%d %H:%M} UTC; is this host's" in line
    channel_credentials(files)


def test_a_certificate_for_the_other_purpose(ca):
    client, server = pki.issue(ca, "host-1"), pki.issue(ca, "central", server=True)
    assert client_problem(server) == (
        f"uplink.tls.certificate: {server.certificate} is a server's certificate, not for clients "
        "(extended key usage); issue a new one with `whitepanda pki host`"
    )
    with pytest.raises(TlsError, match=r"central\.tls\.certificate: .* is not one for servers .*pki central`"):
        server_credentials(client)


@pytest.mark.parametrize("server", [False, True])
def test_a_certificate_of_another_ca_is_for_the_other_side_to_judge(ca, tmp_path, server):
    pki.make_ca(tmp_path / "other")
    theirs = pki.issue(tmp_path / "other", "x", server=server)
    files = TlsFiles(ca=str(ca / "ca.crt"), certificate=theirs.certificate, key=theirs.key)
    prefix = "central.tls" if server else "uplink.tls"
    (line,) = problems(files, server=server, prefix=prefix)
    assert line.startswith(
        f"{prefix}.certificate: {theirs.certificate} is not signed by the CA in {prefix}.ca ({ca / 'ca.crt'})"
    )
    assert warnings(files, server=server, prefix=prefix) == [line]
    if server:
        server_credentials(files)
    else:
        channel_credentials(files)


def test_an_expired_ca(tmp_path, monkeypatch):
    folder = tmp_path / "old"

    class Past(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return dt.datetime.now(tz) - dt.timedelta(days=9)

    with monkeypatch.context() as patch:
        patch.setattr(pki, "dt", types.SimpleNamespace(datetime=Past, timedelta=dt.timedelta, UTC=dt.UTC))
        pki.make_ca(folder, days=5)
    pki.make_ca(tmp_path / "new")
    new = pki.issue(tmp_path / "new", "host-1")
    both = TlsFiles(ca=str(folder / "ca.crt"), certificate=new.certificate, key=new.key)
    assert "is not signed by the CA" in problems(both, server=False, prefix="uplink.tls")[0]
    with monkeypatch.context() as patch:
        patch.setattr(pki, "_load_ca", lambda directory, load=pki._load_ca: _younger(load(directory)))
        leaf = pki.issue(folder, "host-1")
    line = client_problem(leaf)
    assert f"the CA in uplink.tls.ca ({folder / 'ca.crt'}) does not pass: certificate has expired" in line


def _younger(pair):
    """A CA as `issue` sees it, which it believes to be valid still."""
    real, key = pair
    end = dt.datetime.now(dt.UTC) + dt.timedelta(days=9)
    return types.SimpleNamespace(subject=real.subject, not_valid_after_utc=end), key


def test_files_that_are_no_pair(ca):
    one, two = pki.issue(ca, "host-1"), pki.issue(ca, "host-2")
    assert client_problem(TlsFiles(ca=one.ca, certificate=one.certificate, key=two.key)) == (
        f"uplink.tls.certificate: {one.certificate} and uplink.tls.key: {two.key} cannot be used together "
        "(key values mismatch); `whitepanda pki` makes matching ones"
    )


def test_an_encrypted_key_is_said_to_be_one_and_nobody_is_asked(ca):
    files = pki.issue(ca, "host-1")
    with open(files.key, "r+b") as file:  # noqa: PTH123 - a test
        key = serialization.load_pem_private_key(file.read(), password=None)
        file.seek(0)
        file.truncate()
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"x"),
            )
        )
    assert client_problem(files).startswith(f"uplink.tls.key: {files.key} is encrypted")


def test_each_file_that_is_not_there_is_named_by_its_setting(ca, tmp_path):
    files = pki.issue(ca, "host-1")
    lines = problems(TlsFiles(ca=files.ca, key=str(tmp_path / "no.key")), server=True, prefix="central.tls")
    assert lines[0].startswith("central.tls.certificate is not set; ")
    assert lines[1] == f"central.tls.key: cannot read {tmp_path / 'no.key'}: No such file or directory"
    with pytest.raises(TlsError, match=r"^--cert: cannot read /no/x\.crt: No such file"):
        channel_credentials(TlsFiles(ca=files.ca, certificate="/no/x.crt", key=files.key), "--")
    (tmp_path / "der").write_bytes(b"\x30\x00")
    line = client_problem(TlsFiles(ca=str(tmp_path / "der"), certificate=files.certificate, key=files.key))
    assert line == f"uplink.tls.ca: {tmp_path / 'der'} is not a PEM file"
    line = client_problem(TlsFiles(ca=files.key, certificate=files.certificate, key=files.key))
    assert line.startswith(f"uplink.tls.ca: {files.key} holds no usable certificate (")


def test_settings_are_named_as_people_write_them():
    assert [setting("--", what) for what in ("ca", "certificate", "key")] == ["--ca", "--cert", "--key"]
    assert setting("uplink.tls", "certificate") == "uplink.tls.certificate"


# -- when our own expires


def test_the_end_is_that_of_the_certificate_in_the_file_now(ca):
    certificate = OwnCertificate(pki.issue(ca, "h", days=20))
    for _ in range(2):
        assert certificate.expiry_unix_s() == pki.describe(ca / "h.crt").not_after.timestamp()
    pki.renew(ca, "h", days=40)
    assert certificate.expiry_unix_s() == pki.describe(ca / "h.crt").not_after.timestamp()


def test_the_end_of_one_that_has_expired_is_known_too(ca, monkeypatch):
    files = issue_at(monkeypatch, dt.timedelta(days=-30), ca, "h", days=7)
    assert OwnCertificate(files).expiry_unix_s() == pki.describe(files.certificate).not_after.timestamp()


def test_a_certificate_without_its_key_is_not_ours_yet(ca):
    files = pki.issue(ca, "h", days=20)
    certificate = OwnCertificate(files)
    before = certificate.expiry_unix_s()
    pki.issue(ca, "other", days=99)
    (ca / "h.crt").write_bytes((ca / "other.crt").read_bytes())
    assert certificate.expiry_unix_s() == before
    (ca / "h.crt").unlink()
    assert certificate.expiry_unix_s() == before
    assert OwnCertificate(files).expiry_unix_s() is None
    assert OwnCertificate(TlsFiles()).expiry_unix_s() is None
