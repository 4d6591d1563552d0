"""Settings of sources that cannot work are refused by one line that names key, value and remedy."""

import pytest

from agent.config import load
from tests.unit.agent.test_agent_config import MINIMAL, written
from whitepanda.common.errors import ConfigError

FOLDERS = [
    "libvirt.state_dir",
    "procfs.root",
    "cgroup.root",
    "resctrl.root",
    "qemu.proxmox_run_dir",
    "qemu.proxmox_config_dir",
    "ovs.run_dir",
]


@pytest.mark.parametrize("key", FOLDERS)
@pytest.mark.parametrize("value", ["", "sys/fs", "./run", "~/x"])
def test_folders_that_are_not_absolute_are_refused(tmp_path, key, value):
    section, name = key.split(".")
    path = written(tmp_path, f"{MINIMAL}[sources.{section}]\n{name} = '{value}'")
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value) == f"{path}: sources.{key} must be an absolute path (value {value!r})"


ELSEWHERE = [
    "qemu+ssh://x/system",
    "qemu+tls://10.0.0.1/system",
    "qemu+tcp://user@host:16509/system",
    "qemu://[::1",
]


@pytest.mark.parametrize("uri", ELSEWHERE)
def test_the_libvirt_of_another_host_is_refused(tmp_path, uri):
    path = written(tmp_path, f"{MINIMAL}[sources.libvirt]\nuri = '{uri}'")
    with pytest.raises(ConfigError) as error:
        load(path)
    wanted = 'sources.libvirt.uri must be of this host, such as "qemu:///system"'
    assert str(error.value) == f"{path}: {wanted} (value {uri!r})"
    load(written(tmp_path, f"{MINIMAL}[sources.libvirt]\nmode = 'off'\nuri = '{uri}'"))


@pytest.mark.parametrize(
    "uri", ["qemu:///system", "qemu:///session", "qemu+tcp://localhost/system", "qemu+unix:///system"]
)
def test_this_hosts_libvirt_is_taken_however_it_is_reached(tmp_path, uri):
    assert load(written(tmp_path, f"{MINIMAL}[sources.libvirt]\nuri = '{uri}'")).sources.libvirt.uri == uri


NO_DATABASES = [
    "ssl:127.0.0.1:6640",
    "foo",
    "",
    "unix:",
    "unix:run/db.sock",
    "punix:/run/db.sock",
    "ptcp:6640",
    "tcp:127.0.0.1",
    "tcp:127.0.0.1:0",
    "tcp:127.0.0.1:65536",
    "tcp:127.0.0.1:²",
    "tcp:somewhere:6640",
    "tcp:::1:6640",
    "tcp:[::1:6640",
    "tcp:[127.0.0.1]:6640",
    "unix:/run/db.sock,ssl:127.0.0.1:6640",
]


@pytest.mark.parametrize("address", NO_DATABASES)
def test_a_database_that_cannot_be_connected_to_is_refused(tmp_path, address):
    path = written(tmp_path, f"{MINIMAL}[sources.ovs]\ndatabase = '{address}'")
    with pytest.raises(ConfigError) as error:
        load(path)
    wanted = "sources.ovs.database must be this host's OVSDB, as unix:/PATH or tcp:ADDRESS:PORT"
    assert str(error.value) == f"{path}: {wanted} (value {address!r})"
    load(written(tmp_path, f"{MINIMAL}[sources.ovs]\nmode = 'off'\ndatabase = '{address}'"))


@pytest.mark.parametrize("address", ["unix:/var/run/db.sock", "tcp:127.0.0.1:6640", "tcp:[::1]:6640"])
def test_a_database_of_this_host_is_taken(tmp_path, address):
    assert (
        load(written(tmp_path, f"{MINIMAL}[sources.ovs]\ndatabase = '{address}'")).sources.ovs.database
        == address
    )
