"""The list of revoked serials: what a line may be, and one clear line where it is none."""

import pytest

from central.authorisation.revocation_list import Revoked, read_serials
from whitepanda.common.errors import TlsError


def test_serials_in_every_usual_spelling(tmp_path):
    file = tmp_path / "revoked.txt"
    file.write_text("# stolen\n1a2b  # node1\n\n  0A:2C \r\n" + "F" * 40)
    assert read_serials(file) == {"1a2b", "a2c", "f" * 40}


@pytest.mark.parametrize("line", ["node1", "1a2b 3c", "0x1a", "f" * 41, "-1a"])
def test_a_line_that_is_none_is_named(tmp_path, line):
    """Also a SHA-256 fingerprint, which would never match."""
    file = tmp_path / "revoked.txt"
    file.write_text(f"1a\n{line}\n")
    with pytest.raises(TlsError) as caught:
        read_serials(file)
    assert str(caught.value).startswith(f"{file}, line 2: not a serial number")
    assert f"(value {line!r}); `whitepanda pki show`" in str(caught.value)


def test_what_is_no_list_is_one_line(tmp_path):
    with pytest.raises(TlsError, match=r"cannot read the list of revoked serials: Is a directory"):
        read_serials(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(TlsError, match="is not text"):
        read_serials(tmp_path / "binary")


def test_without_a_file_nothing_is_revoked():
    revoked = Revoked()
    revoked.load()
    revoked.look()
    assert (revoked.serials, revoked.problem, "" in revoked) == (frozenset(), "", False)
