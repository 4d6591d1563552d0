import pytest

from collector.qemu import proxmox
from collector.qemu.proxmox import ProxmoxConfig, ProxmoxVm, parse_pools, parse_vm

CONF = """#a note%3A tags: none
agent: 1,fstrim_cloned_disks=1
boot: order=scsi0
name: web1
net0: virtio=A2:C0:43:77:08:A0,bridge=vmbr0
tags: prod;web

[before-upgrade]
name: old
tags: gone
"""
USERS = "user:root@pam:1:0:::a@b::\npool:front:the web:100,101:local:\npool:empty:::\nacl:1:/:root@pam:Admin:\npool\n"


@pytest.fixture
def pve(tmp_path):
    (tmp_path / "qemu-server").mkdir()
    (tmp_path / "qemu-server/101.conf").write_text(CONF)
    (tmp_path / "user.cfg").write_text(USERS)
    return tmp_path


def test_a_vms_file():
    facts = {"pve:tags": "prod;web", "pve:agent": "1,fstrim_cloned_disks=1"}
    assert parse_vm(CONF) == ProxmoxVm("web1", facts)
    assert parse_vm("") == ProxmoxVm()


def test_pools():
    assert parse_pools(USERS) == {"100": "front", "101": "front"}


def test_what_is_reported_of_a_vm(pve):
    config = ProxmoxConfig(str(pve))
    assert config.vm("101").name == "web1"
    assert config.vm("101").facts == {
        "pve:vmid": "101", "pve:tags": "prod;web", "pve:agent": "1,fstrim_cloned_disks=1", "pve:pool": "front"
    }  # fmt: skip
    assert config.vm("100") == ProxmoxVm("", {"pve:vmid": "100", "pve:pool": "front"})


def test_the_nodes_own_folder_will_do(tmp_path):
    folder = tmp_path / "nodes" / "alpha" / "qemu-server"
    folder.mkdir(parents=True)
    (folder / "7.conf").write_text("name: seven\n")
    assert ProxmoxConfig(str(tmp_path), "alpha").vm("7") == ProxmoxVm("seven", {"pve:vmid": "7"})
    assert ProxmoxConfig(str(tmp_path), "beta").vm("7").name == ""


def test_a_file_is_parsed_again_only_when_it_changed(pve, monkeypatch):
    parsed = []
    monkeypatch.setattr(proxmox, "parse_vm", lambda text: parsed.append(text) or parse_vm(text))
    config = ProxmoxConfig(str(pve))
    for _ in range(3):
        config.vm("101")
    assert len(parsed) == 1
    new = pve / "new"
    new.write_text("name: renamed\n")
    new.replace(pve / "qemu-server/101.conf")
    assert config.vm("101").name == "renamed"
    assert len(parsed) == 2
    (pve / "qemu-server/101.conf").unlink()
    assert config.vm("101").name == ""
