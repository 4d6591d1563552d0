"""Whom a tool asks: flag, environment, the user's file of fleets, the host's; in that order."""

import pytest

from whitepanda.common import fleets
from whitepanda.common.errors import ConfigError, InputError, TlsError
from whitepanda.common.fleets import Fleet, resolve
from whitepanda.common.tls import TlsFiles

FILE = """
default = "prod"
[fleets.prod]
central = "prod.example.net:7443"
tls = "pki"
server_name = "central"
[fleets.lab]
central = "lab:7443"
tls = "/lab"
name = "me"
"""


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Return the folder of the user's file; nothing of the machine is seen."""
    for name in (fleets.CENTRAL, fleets.TLS, fleets.FLEET):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(fleets, "ETC", tmp_path / "etc.toml")
    monkeypatch.setattr(fleets, "_in_folder", lambda folder, name, _said_by: f"{folder}/{name}")
    (tmp_path / "whitepanda").mkdir()
    return tmp_path / "whitepanda"


def files(folder, name="operator"):
    return TlsFiles(f"{folder}/ca.crt", f"{folder}/{name}.crt", f"{folder}/{name}.key")


def test_each_setting_is_of_the_first_that_gives_it(places, monkeypatch):
    fleets.ETC.write_text("[fleets.all]\ncentral = 'etc:1'\ntls = '/etc/pki'\n")
    found = resolve(Fleet())
    assert (found.central, found.files, found.server_name) == ("etc:1", files("/etc/pki"), "")
    (places / "config.toml").write_text(FILE)
    found = resolve(Fleet())
    assert (found.central, found.files) == ("prod.example.net:7443", files(places / "pki"))
    assert found.server_name == "central"
    monkeypatch.setenv(fleets.CENTRAL, "env:2")
    found = resolve(Fleet())
    assert (found.central, found.files) == ("env:2", files(places / "pki"))
    assert found.server_name == ""  # that of another central
    monkeypatch.setenv(fleets.TLS, "/env")
    assert resolve(Fleet()).files == files("/env")
    found = resolve(Fleet(central="flag:3", tls="/flag", name="you", key="/k", server_name="s"))
    assert (found.central, found.server_name) == ("flag:3", "s")
    assert found.files == TlsFiles("/flag/ca.crt", "/flag/you.crt", "/k")


def test_a_fleet_is_chosen_by_name(places, monkeypatch):
    (places / "config.toml").write_text(FILE)
    monkeypatch.setenv(fleets.FLEET, "lab")
    found = resolve(Fleet())
    assert (found.central, found.files) == ("lab:7443", files("/lab", "me"))
    assert resolve(Fleet(name="you")).files == files("/lab", "you")
    monkeypatch.setenv(fleets.CENTRAL, "env:2")
    assert resolve(Fleet()).central == "env:2"
    assert resolve(Fleet(), "prod").central == "prod.example.net:7443"  # what was typed counts before the environment
    fleets.ETC.write_text("[fleets.site]\ncentral = 'etc:1'\ntls = '/etc/pki'\n")
    assert resolve(Fleet(), "site").central == "etc:1"
    with pytest.raises(InputError) as refused:
        resolve(Fleet(), "nosuch")
    assert str(refused.value) == (f"no fleet 'nosuch' in {places}/config.toml and {fleets.ETC}; known: prod, lab, site")


def test_the_only_fleet_is_the_default_and_of_several_none_is_guessed(places):
    (places / "config.toml").write_text("[fleets.a]\ncentral = 'a:1'\ntls = '~/p'\n")
    assert resolve(Fleet()).central == "a:1"
    assert not resolve(Fleet()).files.ca.startswith("~")
    (places / "config.toml").write_text("[fleets.a]\ncentral = 'a:1'\n[fleets.b]\ncentral = 'b:1'\n")
    with pytest.raises(InputError) as refused:
        resolve(Fleet(tls="/t"))
    assert str(refused.value) == (
        f'{places}/config.toml has fleets a, b and no default: --fleet a, or default = "a" there'
    )
    fleets.ETC.write_text("[fleets.c]\ncentral = 'c:1'\ntls = '/c'\n")
    assert resolve(Fleet()).central == "c:1"


@pytest.mark.parametrize("fleet", ["prod", ""])
def test_a_fleet_without_central_is_named_with_its_file(places, fleet):
    (places / "config.toml").write_text("[fleets.prod]\ntls = '/p'\n")
    with pytest.raises(InputError) as refused:
        resolve(Fleet(), fleet)
    where = f"fleet prod of {places}/config.toml"
    assert str(refused.value) == f'{where} has no central: write central = "HOST:PORT" there, or give --central'


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ca": "/c", "cert": "/x"}, "--key is missing beside --ca and --cert"),
        ({"ca": "/c", "key": "/x"}, "--cert is missing beside --ca and --key"),
        ({"key": "/x"}, "--ca is missing beside --key"),
    ],
)
def test_the_tls_file_that_is_missing_is_named(places, given, said):
    with pytest.raises(TlsError) as refused:
        resolve(Fleet(central="a:1", **given))
    assert str(refused.value) == f"{said}: give it too, or --tls DIR (of `whitepanda pki`)"
    (places / "config.toml").write_text("[fleets.prod]\ncentral = 'a:1'\nca = '/c'\n")
    with pytest.raises(TlsError, match="--key is missing beside ca of the fleet and --cert"):
        resolve(Fleet(cert="/x"), "prod")


def test_what_is_missing_or_wrong_is_one_line(places, monkeypatch):
    with pytest.raises(InputError, match=rf"no central is named: .* or write .*config\.toml or {fleets.ETC}$"):
        resolve(Fleet(tls="/t"))
    with pytest.raises(InputError, match=r"^--central must be host:port without http:// \(.*\); give c:1$"):
        resolve(Fleet(central="http://c:1/", tls="/t"))
    with pytest.raises(TlsError, match=r"no TLS files are named: give --tls DIR .*, set WHITEPANDA_TLS, write"):
        resolve(Fleet(central="a:1"))
    with pytest.raises(
        InputError,
        match=r"no fleet 'x': neither .*config\.toml nor .* exists; write one .*, or give --central HOST:PORT$",
    ):
        resolve(Fleet(), "x")
    monkeypatch.setenv(fleets.CENTRAL, "here")
    with pytest.raises(
        InputError, match=r"^WHITEPANDA_CENTRAL must be host:port, the port from 1 to 65535 \(value 'here'\)$"
    ):
        resolve(Fleet(tls="/t"))


def test_a_folder_without_the_files_is_blamed_on_whoever_named_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv(fleets.TLS, "/nope")
    with pytest.raises(TlsError, match=r"^WHITEPANDA_TLS: cannot read /nope/ca\.crt: No such file"):
        resolve(Fleet(central="c:1"))
    with pytest.raises(TlsError, match=r"^--tls: cannot read /none/ca\.crt"):
        resolve(Fleet(central="c:1", tls="/none"))
    (tmp_path / "whitepanda").mkdir()
    (tmp_path / "whitepanda" / "config.toml").write_text("[fleets.a]\ncentral = 'a:1'\ntls = '/gone'\n")
    with pytest.raises(TlsError, match=r"^tls of the fleet: cannot read /gone/ca\.crt"):
        resolve(Fleet(), "a")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[fleets.a]\ncentral = 'a:1'\nserver = 'b'\n",
            "unknown key 'fleets.a.server' (value 'b'); known here: ca, central, cert, key, name, server_name, tls",
        ),
        ("fleet = 'a'\n", "unknown key 'fleet' (value 'a'); known here: default, fleets"),
        ("default = 'b'\n[fleets.a]\n", "default must be one of the fleets (value 'b'); known: a"),
        ("[fleets.a]\ncentral = 'a'\n", "fleets.a.central must be host:port (value 'a')"),
        ("[fleets]\na = 3\n", "fleets.a must be a table, got 3"),
        ("fleets = 3\n", "fleets must be a table, got 3"),
        ("[fleets.a]\ntls = 3\n", "fleets.a.tls must be text in quotes, got 3"),
    ],
)
def test_a_wrong_file_is_refused_unless_it_is_not_needed(places, text, problem):
    (places / "config.toml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        resolve(Fleet())
    assert refused.value.problems == (f"{places}/config.toml: {problem}",)
    assert resolve(Fleet(central="a:1", tls="/t")).central == "a:1"
