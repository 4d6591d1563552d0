"""Settings of sources that cannot work are refused by one line that names key, value and remedy."""

import json

import pytest

from agent.config import Sources, load
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


ELSEWHERE = ["qemu+ssh://x/system", "qemu+tls://10.0.0.1/system", "qemu+tcp://user@host:16509/system", "qemu://[::1"]


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
    assert load(written(tmp_path, f"{MINIMAL}[sources.ovs]\ndatabase = '{address}'")).sources.ovs.database == address


def test_an_agent_that_would_measure_nothing_is_refused(tmp_path):
    names = [name for name in Sources.__struct_fields__ if name not in {"pqos", "simulated"}]
    off = "".join(f"[sources.{name}]\nmode = 'off'\n" for name in names)
    path = written(tmp_path, MINIMAL + off)
    with pytest.raises(ConfigError) as error:
        load(path)
    remedy = 'set mode = "auto" for one, such as [sources.procfs]'
    assert str(error.value) == f"{path}: all sources are off, so nothing would be measured; {remedy}"
    one = off.replace("[sources.procfs]\nmode = 'off'", "[sources.procfs]\nmode = 'auto'")
    assert load(written(tmp_path, MINIMAL + one)).sources.procfs.mode == "auto"


def test_resctrl_and_pqos_exclude_each_other(tmp_path):
    both = "[sources.pqos]\nmode = 'required'\n[sources.resctrl]\nmode = 'required'\n"
    path = written(tmp_path, MINIMAL + both)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value) == (
        f"{path}: sources.pqos.mode and sources.resctrl.mode must not both be 'required'; "
        'set [sources.resctrl] mode = "off" where the kernel has no resctrl, else that of [sources.pqos]'
    )
    load(written(tmp_path, MINIMAL + both.replace("required", "off", 1)))


@pytest.mark.parametrize("user", ["", " ", "qemu ", "a\nb", "\x1b[31m"])
def test_users_that_are_none_are_refused(tmp_path, user):
    path = written(tmp_path, f"{MINIMAL}[sources.qemu]\nusers = ['libvirt-qemu', {json.dumps(user)}]\n")
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value) == f"{path}: sources.qemu.users must be names or numbers of users (value {user!r})"
    load(written(tmp_path, f"{MINIMAL}[sources.qemu]\nusers = ['42436', 'DOMAIN\\x user']\n"))
    load(written(tmp_path, f"{MINIMAL}[sources.qemu]\nusers = []\n"))
