"""Real QEMUs without libvirt: one as Proxmox starts it, one as an administrator does, in a network namespace."""

import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collector.base import DiskDevice, InterfaceDevice, Reason
from collector.inventory.inventory import Inventory
from collector.procfs.source import ProcfsSource
from collector.qemu import qmp
from collector.qemu.discovery import QemuFinder
from collector.qemu.source import QemuSource
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(300)]  # traffic is counted

LAB = Path(os.environ.get("WHITEPANDA_LAB", "/var/lib/whitepanda-lab")) / "vm"
GUEST = Path(__file__).resolve().parents[1] / "lab" / "guest.sh"
TOOLS = ("qemu-system-x86_64", "busybox", "cpio", "dpkg-deb", "gcc", "ip", "nsenter", "unshare", "ping")
WEB, BATCH = "7b10d7af-b932-4c66-b2c3-3996152ec465", "57500000-0000-4000-8000-00000000ba7c"
VMID = "8101"
TAP, BARE_TAP = f"tap{VMID}i0", "wpbare0"
MIB = 1 << 20

# The lab's guest with another program: it does what it is reported on its console, and says when it is done.
INIT = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
dmesg -n 1
for m in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk failover net_failover \\
    virtio_net; do insmod /mod/$m.ko; done
ip addr add 10.78.0.2/24 dev eth0
ip link set eth0 up
exec </dev/ttyS0 >/dev/ttyS0 2>&1
stty -echo
echo READY
while read -r what mib; do
    case $what in
    write) dd if=/dev/zero of=/dev/vda bs=64k count=$((mib * 16)) conv=fsync 2>/dev/null ;;
    read) echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vda of=/dev/null bs=64k count=$((mib * 16)) 2>/dev/null ;;
    busy) while :; do :; done & ;;
    rest) kill %1 ;;
    esac
    echo "DONE $what"
done
"""
KERNEL = "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable nowatchdog ipv6.disable=1"


class Console:
    """A guest's serial console."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        wait_until(path.exists)
        self._socket.connect(str(path))
        self._text = b""

    def close(self):
        self._socket.close()

    def expect(self, word, timeout_s=100.0):
        end = time.monotonic() + timeout_s
        while word.encode() not in self._text:
            left = end - time.monotonic()
            assert left > 0, f"the guest did not say {word}: {self._text[-500:]!r}"
            self._socket.settimeout(left)
            self._text += self._socket.recv(4096)
        self._text = self._text.partition(word.encode())[2]

    def tell(self, command):
        self._socket.sendall(command.encode() + b"\n")
        self.expect(f"DONE {command.split()[0]}")


class Host:
    """The QEMUs of this test; it ends just those."""

    def __init__(self, folder):
        self.folder = folder
        self.run_dir = folder / "qemu-server"
        self.config_dir = folder / "pve"
        self.pids = set()
        self.consoles = {}
        self._namespace = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])

    def start(self, *arguments, program="qemu-system-x86_64", namespace=False):
        """Start a QEMU that becomes a daemon; returns its process id."""
        pid_file = Path(arguments[arguments.index("-pidfile") + 1])
        program = self.folder / "kvm" if program == "kvm" else program
        enter = self.inside() if namespace else []
        command = [*enter, program, *arguments, "-nodefaults", "-display", "none", "-m", "128", "-daemonize"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        pid = int(pid_file.read_text())
        self.pids.add(pid)
        return pid

    def inside(self):
        """The command's beginning that enters the network namespace."""
        return ["nsenter", f"--net=/proc/{self._namespace.pid}/ns/net"]

    def kill(self, pid):
        self.pids.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid))

    def close(self):
        for pid in list(self.pids):
            self.kill(pid)
        self._namespace.kill()
        self._namespace.wait()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def initrd(tmp_path_factory):
    """The lab's initial file system with our program over its own: the kernel unpacks both."""
    if os.geteuid() != 0:
        pytest.skip("needs root: starts QEMU with tap devices")
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        pytest.skip(f"tests/lab/packages.sh did not install all: no {', '.join(absent)}")
    subprocess.run([GUEST], check=True, timeout=200)
    folder = tmp_path_factory.mktemp("initrd")
    (folder / "init").write_text(INIT)
    (folder / "init").chmod(0o755)
    archive = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], input=b"init\n", cwd=folder, capture_output=True, check=True
    ).stdout
    path = folder / "initrd.gz"
    path.write_bytes((LAB / "initrd.gz").read_bytes() + gzip.compress(archive, 1))
    return path


@pytest.fixture(scope="module")
def host(initrd, tmp_path_factory):
    """Both VMs, booted, with their consoles."""
    host = Host(tmp_path_factory.mktemp("q"))
    for folder in (host.run_dir, host.config_dir / "qemu-server"):
        folder.mkdir(parents=True)
    (host.folder / "kvm").symlink_to(shutil.which("qemu-system-x86_64"))
    (host.config_dir / "qemu-server" / f"{VMID}.conf").write_text("name: web1\ntags: prod;web\n[old]\ntags: gone\n")
    (host.config_dir / "user.cfg").write_text(f"pool:front::{VMID}::\n")
    boot = ["-kernel", str(LAB / "vmlinuz"), "-initrd", str(initrd), "-append", KERNEL]
    try:
        for name in ("web", "batch"):
            with (host.folder / f"{name}.raw").open("wb") as disk:
                disk.truncate(64 * MIB)
        host.web = host.start(*proxmox_arguments(host), *boot, program="kvm")
        host.batch = host.start(*bare_arguments(host), *boot, namespace=True)
        subprocess.run(["ip", "link", "set", TAP, "up"], check=True)
        for command in (f"addr add 10.78.0.1/24 dev {BARE_TAP}", f"link set {BARE_TAP} up"):
            subprocess.run([*host.inside(), "ip", *command.split()], check=True)
        host.consoles.update({name: Console(host.folder / f"{name}.serial") for name in ("web", "batch")})
        for console in host.consoles.values():
            console.expect("READY")
        yield host
    finally:
        for console in host.consoles.values():
            console.close()
        host.close()


def proxmox_arguments(host):
    """As `qm showcmd` prints them, less what needs Proxmox' own QEMU or KVM."""
    return [
        "-name", "web1,debug-threads=on", "-no-shutdown",
        "-chardev", f"socket,id=qmp,path={host.run_dir}/{VMID}.qmp,server=on,wait=off",
        "-mon", "chardev=qmp,mode=control",
        "-chardev", f"socket,id=qmp-event,path={host.folder}/qmeventd.sock,reconnect=5",
        "-mon", "chardev=qmp-event,mode=control", "-pidfile", f"{host.run_dir}/{VMID}.pid",
        "-smbios", f"type=1,uuid={WEB}", "-smp", "2,sockets=1,cores=2,maxcpus=2",
        "-device", "vmgenid,guid=c773c261-d800-4348-9f5d-167fadd53cf8",
        "-drive", "if=none,id=drive-ide2,media=cdrom,aio=threads",
        "-device", "ide-cd,bus=ide.1,unit=0,drive=drive-ide2,id=ide2,bootindex=101",
        "-drive", f"file={host.folder}/web.raw,if=none,id=drive-virtio0,format=raw,cache=none,aio=native",
        "-device", "virtio-blk-pci,drive=drive-virtio0,id=virtio0,bus=pci.0,addr=0xa",
        "-netdev", f"type=tap,id=net0,ifname={TAP},script=no,downscript=no",
        "-device", "virtio-net-pci,mac=BC:24:11:00:00:01,netdev=net0,bus=pci.0,addr=0x12,id=net0",
        "-machine", "accel=tcg,type=pc", "-serial", f"unix:{host.folder}/web.serial,server=on,wait=off",
    ]  # fmt: skip


def bare_arguments(host):
    """Threads without names, so that only QMP tells the vCPUs."""
    return [
        "-name", "batch,,night", "-uuid", BATCH, "-pidfile", f"{host.folder}/batch.pid", "-smp", "1",
        "-qmp", f"unix:{host.folder}/batch.qmp,server,nowait",
        "-blockdev", json.dumps({"driver": "raw", "node-name": "disk", "cache": {"direct": True},
                                 "file": {"driver": "file", "filename": f"{host.folder}/batch.raw"}}),
        "-device", "virtio-blk-pci,drive=disk,id=data",
        "-netdev", f"tap,id=n0,ifname={BARE_TAP},script=no,downscript=no",
        "-device", "virtio-net-pci,netdev=n0,mac=52:54:00:78:00:02",
        "-accel", "tcg", "-serial", f"unix:{host.folder}/batch.serial,server=on,wait=off",
    ]  # fmt: skip


@pytest.fixture
def inventory(host):
    return Inventory("/nonexistent", finders=[QemuFinder(run_dir=str(host.run_dir))])


@pytest.fixture
def source(host, inventory):
    source = QemuSource(inventory, disk_poll_s=0.5, proxmox_config_dir=str(host.config_dir))
    source.open()
    wait_until(lambda: source.sample() and all(disks(source, uuid) for uuid in (WEB, BATCH)))
    yield source
    source.close()


def disks(source, uuid):
    vm = source.sample().vms.get(uuid)
    return vm and vm.disks


def polled_after(source, uuid, mono_ns):
    """The sample with the first disk counters that were asked for after a moment."""

    def look():
        vm = source.sample().vms[uuid]
        return vm if vm.disks is not None and vm.stamps["disks"].mono_ns > mono_ns else None

    return wait_until(look)


def test_who_they_are(host, source, inventory):
    vms = wait_until(lambda: (found := by_uuid(inventory)) and found[BATCH].vcpu_tids and found)
    web, batch = vms[WEB], vms[BATCH]
    assert (web.name, web.manager, web.pid, web.accelerator) == ("web1", "proxmox", host.web, "tcg")
    assert dict(web.facts) == {"pve:vmid": VMID, "pve:tags": "prod;web", "pve:pool": "front"}
    assert web.disks == (DiskDevice("virtio0", "file"),)
    assert web.interfaces == (InterfaceDevice(TAP, "bc:24:11:00:00:01", "ethernet"),)
    comms = [Path(f"/proc/{web.pid}/task/{tid}/comm").read_text().strip() for tid in web.vcpu_tids]
    assert comms == ["CPU 0/TCG", "CPU 1/TCG"]
    assert (batch.name, batch.manager, batch.pid) == ("batch,night", "qemu", host.batch)
    assert batch.disks == (DiskDevice("data", "file"),)
    assert len(batch.vcpu_tids) == 1  # told by QMP
    assert batch.vcpu_tids[0] != batch.pid
    assert {web.state, batch.state} == {"running"}
    probe = source.probe()
    assert probe.available
    assert "VMs without libvirt now" in probe.detail


def by_uuid(inventory):
    return {vm.uuid: vm for vm in inventory.vms()}


@pytest.mark.long
def test_guest_time_of_both_kinds_of_threads(host, source, inventory):
    wait_until(lambda: by_uuid(inventory)[BATCH].vcpu_tids)
    procfs = ProcfsSource(inventory)
    host.consoles["batch"].tell("busy")
    try:
        before = procfs.sample()
        time.sleep(3)
        after = procfs.sample()
    finally:
        host.consoles["batch"].tell("rest")
        procfs.close()
    elapsed_ns = after.mono_ns - before.mono_ns
    used = {}
    for uuid in (WEB, BATCH):
        now, last = after.vms[uuid].threads, before.vms[uuid].threads
        assert now.keys() == last.keys() == set(by_uuid(inventory)[uuid].vcpu_tids)
        used[uuid] = sum(
            now[tid].guest_ns + now[tid].run_queue_wait_ns - last[tid].guest_ns - last[tid].run_queue_wait_ns
            for tid in now
        )
    # The busy guest always wants its vCPU; what it does not get of it on a loaded machine, it waits for.
    assert 0.9 < used[BATCH] / elapsed_ns < 1.1
    assert used[WEB] < used[BATCH] / 2


@pytest.mark.parametrize(("name", "uuid", "disk"), [("web", WEB, "virtio0"), ("batch", BATCH, "data")])
def test_disk_bytes_are_what_the_guest_wrote_and_read(host, source, name, uuid, disk):
    before = polled_after(source, uuid, time.monotonic_ns())
    host.consoles[name].tell("write 16")
    host.consoles[name].tell("read 8")
    after = polled_after(source, uuid, time.monotonic_ns())
    now, last = after.disks[disk], before.disks[disk]
    assert now.write_bytes - last.write_bytes == pytest.approx(16 * MIB, rel=0.02)
    assert now.read_bytes - last.read_bytes == pytest.approx(8 * MIB, rel=0.02)
    assert now.write_ops > last.write_ops
    assert set(after.disks) == {disk}  # the drive without a medium has no counters


@pytest.mark.long
def test_network_bytes_are_the_generators_in_qemus_namespace(host, source):
    before = source.sample().vms[BATCH].interfaces[BARE_TAP]
    ping = ["ping", "-q", "-c", "150", "-i", "0.01", "-s", "1400", "10.78.0.2"]
    done = subprocess.run([*host.inside(), *ping], capture_output=True, text=True, timeout=60, check=False)
    sent, answered = map(int, re.search(r"(\d+) packets transmitted, (\d+) received", done.stdout).groups())
    now = source.sample().vms[BATCH].interfaces[BARE_TAP]
    frame = 1400 + 8 + 20 + 14
    assert answered > 100
    assert now.receive_bytes - before.receive_bytes == pytest.approx(sent * frame, rel=0.02)
    assert now.transmit_bytes - before.transmit_bytes == pytest.approx(answered * frame, rel=0.02)


@pytest.mark.long
def test_receive_is_what_is_sent_to_the_guest(host, source):
    before = source.sample().vms[WEB].interfaces[TAP]
    frame = bytes.fromhex("bc2411000001" + "020000000001" + "88b5") + bytes(1000)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind((TAP, 0))
        for _ in range(200):
            raw.send(frame)
            time.sleep(0.002)
    now = source.sample().vms[WEB].interfaces[TAP]
    assert now.receive_bytes - before.receive_bytes == pytest.approx(200 * len(frame), rel=0.02)
    assert now.transmit_bytes - before.transmit_bytes < 20 * len(frame)


@pytest.mark.long
def test_a_socket_that_another_client_holds(host, source, caplog):
    """As Proxmox' tools do for a moment, or an operator for hours."""
    with socket.socket(socket.AF_UNIX) as holder:
        holder.settimeout(20)
        holder.connect(f"{host.run_dir}/{VMID}.qmp")
        assert b"QMP" in holder.recv(4096)
        wait_until(lambda: "another client holds this QMP socket" in caplog.text)
        polled_after(source, BATCH, time.monotonic_ns())  # the other VM's go on
        # Until it is too old the last reading is handed on; then the VM's disks are stuck, and only they.
        stuck = wait_until(lambda: (vm := source.sample().vms[WEB]).disks is None and vm)
        assert stuck.absent == {"disks": Reason.STUCK}
        assert stuck.interfaces
        holder.sendall(b'{"execute":"qmp_capabilities"}\n')  # and the holder is none the worse
        assert b"return" in holder.recv(4096)
    polled_after(source, WEB, time.monotonic_ns())


@pytest.mark.long
def test_a_stopped_qemu_delays_no_sample_and_no_other_vm(host, source):
    os.kill(host.batch, signal.SIGSTOP)
    try:
        stopped_ns = time.monotonic_ns()
        wait_until(lambda: disks(source, BATCH) is None)
        polled_after(source, WEB, stopped_ns)
        sample = source.sample()
        assert sample.vms[BATCH].absent["disks"] is Reason.STUCK
        assert sample.vms[BATCH].interfaces
    finally:
        os.kill(host.batch, signal.SIGCONT)
    polled_after(source, BATCH, time.monotonic_ns())


@pytest.mark.long
def test_only_the_vms_own_process_is_asked(host):
    with pytest.raises(qmp.QmpError, match=f"process {host.web} listens there"):
        qmp.ask(f"{host.run_dir}/{VMID}.qmp", ["query-status"], pid=host.batch, uid=os.getuid(), deadline_s=5)
    answers = qmp.ask(f"{host.run_dir}/{VMID}.qmp", sorted(qmp.ALLOWED), pid=host.web, uid=os.getuid(), deadline_s=5)
    assert qmp.parse_state(answers["query-status"]) == "running"
    tids = qmp.parse_tids(answers["query-cpus-fast"])
    assert [Path(f"/proc/{host.web}/task/{tid}/comm").read_text() for tid in tids] == ["CPU 0/TCG\n", "CPU 1/TCG\n"]


SPARE = "7b10d7af-b932-4c66-b2c3-39961521111e"


def spare(host):
    """A Proxmox VM that is started paused, which takes no time."""
    socket_ = f"socket,id=qmp,path={host.run_dir}/8102.qmp,server=on,wait=off"
    return host.start(
        "-name", "spare,debug-threads=on", "-pidfile", f"{host.run_dir}/8102.pid", "-smbios", f"type=1,uuid={SPARE}",
        "-chardev", socket_, "-mon", "chardev=qmp,mode=control", "-S", program="kvm",
    )  # fmt: skip


@pytest.mark.long
def test_start_kill_and_restart_are_epochs_and_cost_the_others_nothing(host, source, inventory):
    others = {uuid: by_uuid(inventory)[uuid].epoch for uuid in (WEB, BATCH)}
    epochs = []
    for _ in range(2):
        pid = spare(host)
        wait_until(lambda: SPARE in by_uuid(inventory))
        vm = wait_until(lambda: source.sample() and (vm := by_uuid(inventory)[SPARE]).state == "paused" and vm)
        assert (vm.pid, vm.name, vm.manager, len(vm.vcpu_tids)) == (pid, "spare", "proxmox", 1)
        epochs.append(vm.epoch)
        host.kill(pid)
        assert (host.run_dir / "8102.pid").exists()  # stale, and names no VM
        wait_until(lambda: SPARE not in by_uuid(inventory))
        assert SPARE not in source.sample().vms
    assert len(set(epochs)) == 2
    assert {uuid: by_uuid(inventory)[uuid].epoch for uuid in (WEB, BATCH)} == others


@pytest.mark.long
def test_a_process_id_that_another_program_has_by_now(host, inventory):
    heir = None
    while heir is None:  # another process may have the number before us
        qemu = subprocess.Popen(["qemu-system-x86_64", "-S", "-display", "none", "-uuid", SPARE, "-m", "64"])
        try:
            wait_until(lambda: SPARE in by_uuid(inventory))
        finally:
            qemu.kill()
            qemu.wait()  # reaped by us, so that the number is free
        pid = qemu.pid
        heir = reuse(pid)
    try:
        for _ in range(3):
            time.sleep(1)  # scans come and go
            assert SPARE not in by_uuid(inventory)
            assert pid not in {vm.pid for vm in inventory.vms()}
    finally:
        heir.kill()
        heir.wait()


def reuse(pid):
    """Start a process with just this id. Others start processes too, so that it takes some tries. None: it is taken."""
    for _ in range(200):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        heir = subprocess.Popen(["sleep", "60"])
        if heir.pid == pid:
            return heir
        heir.kill()
        heir.wait()
    return None


CONFIG = """
[agent]
host = "qemu-host"
state_dir = "{folder}/state"
socket = "{folder}/agent.sock"
tick_s = 0.5

[sources.libvirt]
mode = "off"
state_dir = "/nonexistent"

[sources.qemu]
mode = "required"
proxmox_run_dir = "{run_dir}"
proxmox_config_dir = "{config_dir}"
disk_poll_s = 1

[[jobs]]
fact = "pve:tags"
pattern = '(?:^|;)web(?:;|$)'
job = "web"
latency_sensitive = true
"""


@pytest.mark.long
def test_the_agent_shows_them_like_any_other(host, tmp_path):
    text = CONFIG.format(folder=tmp_path, run_dir=host.run_dir, config_dir=host.config_dir)
    (tmp_path / "agent.toml").write_text(text)
    program = Path(sys.executable).parent / "whitepanda"
    with (tmp_path / "agent.log").open("wb") as output:
        command = [program, "agent", "run", "-c", tmp_path / "agent.toml"]
        agent = subprocess.Popen(command, stdout=output, stderr=output)
    try:

        def shown():
            assert agent.poll() is None, (tmp_path / "agent.log").read_text()
            if not (tmp_path / "agent.sock").exists():
                return None
            ask = [program, "vms", "--json", "--socket", tmp_path / "agent.sock"]
            done = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=False)
            found = {vm["uuid"]: vm for vm in json.loads(done.stdout)["vms"]} if done.returncode == 0 else {}
            wanted = ("guest_ratio", "disk_write_bytes_per_s", "network_receive_bytes_per_s")
            reported = [
                found[uuid]["metrics"][name]["value"] for uuid in (WEB, BATCH) if uuid in found for name in wanted
            ]
            return found if len(reported) == 6 and None not in reported else None

        vms = wait_until(shown)
        assert (vms[WEB]["name"], vms[WEB]["job"], vms[WEB]["latency_sensitive"]) == ("web1", "web", True)
        assert (vms[BATCH]["name"], vms[BATCH]["job"]) == ("batch,night", "batch,night")
        assert vms[WEB]["metrics"]["disk_write_bytes_per_s"]["source"] == "qemu"
        assert vms[WEB]["metrics"]["network_receive_bytes_per_s"]["source"] == "qemu"
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(20) == 0, (tmp_path / "agent.log").read_text()
    finally:
        agent.kill()
        agent.wait()
