"""Central's configuration: refusals that name file, key and value; ranges of all numbers."""

from pathlib import Path

import msgspec
import pytest

from central.config import CentralConfig, load
from central.incidents.store import IncidentStore
from central.lake.objects import open_objects
from whitepanda.common.errors import ConfigError, UnavailableError

URL = 'incidents.url must be postgresql://user:password@host/database, or "" for SQLite'
MASTER = (
    "build.spark_master must be a master of Spark such as local[2], spark://host:7077, yarn or k8s://https://host:443"
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "central.toml"
    path.write_text(text if "[central]" in text else f"[central]\n{text}")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ingest]\nmax_message_bytes = 10", "ingest.max_message_bytes must be 65536 to 268435456 (value 10)"),
        ("[ingest]\nroll_rows = 0", "ingest.roll_rows must be 1 to 100000000 (value 0)"),
        ("operators = ['op', '']", "central.operators[1] must be the name of a certificate (value '')"),
        ("[build]\ndays = 99999", "build.days must be 1 to 3660 (value 99999)"),
        (
            "[lake]\nslot_days = 90",
            "lake.slot_days must be 0, or at least lake.raw_days (which must be set) and build.days (value 90)",
        ),
        (
            "[lake]\nraw_days = 60\nslot_days = 50",
            "lake.slot_days must be 0, or at least lake.raw_days (which must be set) and build.days (value 50)",
        ),
        (
            "[lake]\nraw_days = 7\nslot_days = 30",
            "lake.slot_days must be 0, or at least lake.raw_days (which must be set) and build.days (value 30)",
        ),
        (
            "[webhooks]\nurls = ['ftp://a/secret']",
            "webhooks.urls[0] must be https://host[:port]/path (value begins with 'ftp')",
        ),
        (
            "[webhooks]\nurls = ['https://a:port/secret']",
            "webhooks.urls[0] must be https://host[:port]/path (value begins with 'https')",
        ),
        (
            "[webhooks]\nurls = ['http://127.0.0.1:1/', 'http://u:secret@a.example/secret']",
            "webhooks.urls[1] must be https: messages name VMs and jobs; http only to this machine (host 'a.example')",
        ),
        ("[webhooks]\nurls = ['https://a/', 'https://a/']", "webhooks.urls[1] is given twice (host 'a')"),
        (
            "[webhooks]\nincident_url = 'https://a/17'",
            (
                "webhooks.incident_url must be a URL with {id} where the incident's number belongs, such as "
                "https://central.example.net:7480/#/incident/{id} (value 'https://a/17')"
            ),
        ),
        ("[webhooks]\nmax_waiting = 0", "webhooks.max_waiting must be 1 to 1000000 (value 0)"),
        ("[build]\nslot_s = 7.0", "build.slot_s must divide a day, 86400 s (value 7.0)"),
        ("[central]\nlisten = 'nowhere'", "central.listen must be host:port (value 'nowhere')"),
        ("[central]\nlisten = 'a:\u00b2'", "central.listen must be host:port (value 'a:\u00b2')"),
        ("[central]\nlisten = 'a:65536'", "central.listen must have a port of 0 to 65535 (value 'a:65536')"),
        ("[central]\nreplica = 'a/b'", "central.replica must be 1 to 64 letters, digits and '-' (value 'a/b')"),
        (
            "[central]\nlake_dir = 'ftp://x/y'",
            "central.lake_dir must be a folder or s3://bucket/prefix (value 'ftp://x/y')",
        ),
        ("[central]\nlake_dir = 's3://'", "central.lake_dir must be a folder or s3://bucket/prefix (value 's3://')"),
        (
            "[central]\nstate_dir = '/proc/version'",
            "central.state_dir must be a folder, and /proc/version is none (value '/proc/version')",
        ),
        (
            "[central]\nlake_dir = '/proc/version/lake'",
            "central.lake_dir must be a folder, and /proc/version is none (value '/proc/version/lake')",
        ),
        ("[central]\nstate_dir = ''", "central.state_dir must be a folder (value '')"),
        ("[incidents]\nurl = 'mysql://me:secret@x/y'", f"{URL} (value begins with 'mysql')"),
        ("[incidents]\nurl = 'me:secret@x/y'", f"{URL} (value is not a URL)"),
        ("[build]\nengine = 'spark'\nspark_master = 'bogus'", f"{MASTER} (value 'bogus')"),
    ],
)
def test_impossible_values_are_refused(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value) == f"{path}: {message}"


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::]:7443", "central.example:65535"])
def test_addresses_of_every_kind_are_taken(tmp_path, listen):
    assert load(written(tmp_path, f"[central]\nlisten = '{listen}'")).central.listen == listen


@pytest.mark.parametrize(
    "text",
    [
        "[central]\nlake_dir = 's3://bucket'",
        "[central]\nlake_dir = 's3://bucket/a/b'",
        "[central]\nstate_dir = '/not/there/yet'\nlake_dir = 'relative'",
        "[incidents]\nurl = 'postgresql://me@h/d'",
        "[incidents]\nurl = 'postgresql+psycopg://me@h/d'",
        "[build]\nspark_master = 'bogus'",
        *(
            f"[build]\nengine = 'spark'\nspark_master = '{master}'"
            for master in ("local", "local[*]", "local[2,3]", "spark://h:7077", "yarn", "k8s://https://h:443")
        ),
    ],
)
def test_every_kind_of_place_database_and_master_is_taken(tmp_path, text):
    load(written(tmp_path, text))


def test_a_start_without_the_check_says_the_same(tmp_path):
    with pytest.raises(UnavailableError, match=r"^lake ftp://x/y: a lake is a folder or s3://bucket/prefix$"):
        open_objects("ftp://x/y")
    with pytest.raises(UnavailableError, match=r"^incidents\.url is not a URL; write postgresql://"):
        IncidentStore("postgresql://me:secret@h:port/d", tmp_path)


def test_every_number_has_a_range_and_its_default_is_within(tmp_path):
    config = load(written(tmp_path, ""))
    unbounded = [
        f"{section.name}.{field.name}"
        for section in msgspec.structs.fields(CentralConfig)
        for field in msgspec.structs.fields(section.type)
        if field.type in (int, float)
    ]
    assert unbounded == []
    assert config == CentralConfig(config.central)
    assert msgspec.convert(msgspec.to_builtins(config), CentralConfig) == config
