"""The socket of `whitepanda act`: who may ask, what is answered to nonsense; its commands; virsh; how victims do."""

import asyncio
import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agent.act import client
from agent.act import server as server_module
from agent.act.journal import Journal
from agent.act.quota import Quota, Virsh
from agent.act.records import ActError, Apply, Ask, Limits, RefusedError, Undo
from agent.act.server import Server, make_actor
from agent.act.victims import degradation_of
from agent.api.client import connect
from agent.api.server import LocalApi
from agent.cli import act as command
from agent.config import ActSection, AgentConfig, AgentSection, load
from collector.base import SourceError, VmIdentity
from tests.unit.agent import canned_agents
from tests.unit.agent.act_fakes import LIMITS, OPERATOR, OTHER, VICTIM, VM, FakeBackend, asked, make
from whitepanda.common import cli, log
from whitepanda.common.errors import ConfigError, UnavailableError


@pytest.fixture
def short(tmp_path_factory):
    """A folder whose path fits into a socket's address."""
    return tmp_path_factory.mktemp("s")


@contextlib.asynccontextmanager
async def served(folder, backend=None, *, stop_s=60.0, **changes):
    """Serve a fake of the host's VMs; gives the socket's path."""
    section = ActSection(enabled=True, socket=str(folder / "act" / "a.sock"), watch_interval_s=0.1)
    log.configure("error")
    server = Server(section, make(folder, backend or FakeBackend(), **changes), stop_s)
    running = asyncio.create_task(server.run())
    ready = asyncio.create_task(server.ready.wait())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    try:
        yield Path(section.socket)
    finally:
        server.stop()
        await running


async def ask(path, request):
    return await asyncio.to_thread(client.ask, path, request)


async def raw(path, data):
    """Return what is answered to some bytes."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(data)
    answer = await reader.readline()
    writer.close()
    return json.loads(answer)


async def test_who_asked_is_reported_by_the_kernel_and_its_end_undoes_all(short):
    vms = FakeBackend()
    async with served(short, vms) as path:
        done = (await ask(path, asked())).done[0]
        assert (done.result, vms.states[VM]) == ("applied", "limit 2")
        answer = await ask(path, Ask())
        (listed,) = answer.in_force
        assert (listed.record.uid, listed.record.pid) == (os.getuid(), os.getpid())
        assert answer.limits.enabled
    assert vms.states[VM] == "none"
    assert not path.exists()
    last = json.loads((short / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["result"], last["uid"], last["why"]) == ("undone", -1, "the service ends")


async def test_the_socket_is_its_groups_only_and_what_was_left_there_is_replaced(short):
    path = short / "act" / "a.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with served(short) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert (await ask(path, Ask())).in_force == ()


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"{}\n",
        b'{"type":"apply","action":"rm","vm":"x","amount":1,"seconds":1}\n',
        b'{"type":"undo","number":1,"more":1}\n',
        b"x" * (80 << 10) + b"\n",
        b"\xff\n",
        b"[" * 5000 + b"\n",
    ],
    ids=["nothing", "no type", "no action", "unknown key", "too long", "no text", "too deep"],
)
async def test_nonsense_is_refused_and_costs_nobody_else_anything(short, data):
    async with served(short) as path:
        answer = await raw(path, data)
        assert answer["error"].startswith("not a request: ")
        assert (await ask(path, Ask())).limits is not None


async def test_what_is_refused_and_what_fails_are_distinguished(short):
    vms = FakeBackend()
    async with served(short, vms) as path:
        with pytest.raises(RefusedError, match="below act"):
            await ask(path, asked(amount=0.1))
        with pytest.raises(RefusedError, match="no action 7"):
            await ask(path, Undo(7))
        vms.failure = "libvirt is away"
        with pytest.raises(ActError, match="libvirt is away"):
            await ask(path, asked())
        vms.failure = ""


async def test_two_who_ask_at_once_do_not_pass_the_limits_together(short):
    vms = FakeBackend({f"00000000-0000-4000-8000-00000000000{n}": "none" for n in range(8)})
    identities = [VmIdentity(uuid, uuid, 4711, "e", (1, 2)) for uuid in vms.states]
    limits = msgspec.structs.replace(LIMITS, max_share=0.25)
    async with served(short, vms, listed=identities, limits=limits) as path:
        answers = await asyncio.gather(*(ask(path, asked(vm=vm)) for vm in vms.states), return_exceptions=True)
    refused = [one for one in answers if isinstance(one, RefusedError)]
    assert len(refused) == 6
    assert all("act.max_share" in str(one) for one in refused)


async def test_a_look_that_fails_does_not_end_the_service(short, capsys):
    def broken(_uuid, _signal):
        raise RuntimeError("a bug")

    vms = FakeBackend()
    async with served(short, vms, victims=broken) as path:
        with pytest.raises(ActError, match="RuntimeError"):
            await ask(path, asked())
        assert (await ask(path, asked(victim=""))).done[0].result == "applied"
    assert vms.states[VM] == "none"


async def test_at_its_end_it_tries_again_and_says_what_is_left_in_force(short):
    vms = FakeBackend()

    async def run():
        async with served(short, vms, stop_s=0.0) as path:
            await ask(path, asked())
            vms.failure = "libvirt is away"

    with pytest.raises(ActError, match=rf"not undone: 1 limits \(VMs {VM}: libvirt is away\); the next start"):
        await run()
    assert vms.states[VM] == "limit 2"


async def test_a_failure_that_passes_by_leaves_nothing_in_force_at_its_end(short, monkeypatch):
    vms, tries = FakeBackend(), []
    real = vms.read

    def flaky(vm):
        tries.append(vm)
        if len(tries) == 2:  # the first at the end
            raise ActError("libvirt is away")
        return real(vm)

    monkeypatch.setattr(vms, "read", flaky)
    async with served(short, vms) as path:
        await ask(path, asked())
    assert (len(tries), vms.states[VM]) == (3, "none")


async def test_nothing_is_applied_once_it_ends(short):
    log.configure("error")
    server = Server(ActSection(socket=str(short / "a.sock")), make(short, FakeBackend()))
    server.stop()
    with pytest.raises(RefusedError, match="is stopping"):
        server._do(asked(), OPERATOR)
    assert server._do(Ask(), OPERATOR).in_force == ()
    assert "is stopping" in (short / "audit.jsonl").read_text()


async def test_whoever_sends_nonsense_is_in_the_audit_log(short):
    async with served(short) as path:
        await raw(path, b"{}\n")
    (line,) = map(json.loads, (short / "audit.jsonl").read_text().splitlines())
    assert (line["event"], line["result"], line["uid"]) == ("request", "refused", os.getuid())


def test_where_nobody_answers_it_is_said_what_to_do(short):
    with pytest.raises(UnavailableError, match="systemctl start whitepanda-act"):
        client.ask(short / "none.sock", Ask())


async def test_who_takes_it_for_the_agent_is_reported(short):
    def vms(path):
        with connect(path) as agent:
            agent.vms()

    async with served(short) as path:
        with pytest.raises(UnavailableError) as refused:
            await asyncio.to_thread(vms, path)
    reported = "is not the agent: give the agent's socket with --socket, by default /run/whitepanda/agent.sock"
    assert str(refused.value) == f"the server at {path} {reported}"


# --- the commands ---


def whitepanda(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["whitepanda", "act", *arguments])
    monkeypatch.setattr(cli.console, "width", 160)
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    return code, said.out, said.err


async def test_the_commands(short, monkeypatch, capsys):
    vms = FakeBackend()
    async with served(short, vms) as path:

        async def run(*arguments):
            words = (*arguments, "--socket", str(path))
            return await asyncio.to_thread(whitepanda, monkeypatch, capsys, *words)

        assert (await run("list"))[1] == "nothing is limited\n"
        applied = await run("apply", "cap-cpu", VM, "--cores", "2", "--victim", VICTIM, "--why", "incident 7")
        assert applied == (0, f"action 1: cap-cpu {VM}: applied (none -> limit 2); set {VM} limit 2\n", "")
        shown = (await run("list"))[1]
        assert re.search(rf"1 +cap-cpu +{VM} +2 cores +\d+ s +{os.getuid()} +incident 7", shown)
        reported = json.loads((await run("list", "--json"))[1])
        assert reported["in_force"][0]["record"]["vm"] == VM
        state = json.loads((await run("status", "--json"))[1])
        assert (state["in_force"], state["limits"]["dry_run"]) == (1, False)
        assert "max_share              0.5" in (await run("status"))[1]
        undone = await run("undo", "1")
        assert undone[:2] == (0, f"action 1: cap-cpu {VM}: undone (limit 2 -> none); on request\n")
        assert (await run("undo", "all"))[1] == "nothing was in force\n"
        assert await run("undo", "--vm", VM) == (0, "nothing was in force\n", "")
        code, out, err = await run("undo", "1")
        assert (code, out) == (3, "")
        assert "error: no action 1 is in force" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("apply", "rm", VM, "--cores", "1"), "ACTION must be one of cap-cpu, limit-bandwidth, limit-cache"),
        (("apply", "cap-cpu", VM), "cap-cpu needs --cores"),
        (("apply", "cap-cpu", VM, "--cores", "1", "--ways", "2"), "--ways is of another action"),
        (("apply", "cap-cpu", VM, "--cores", "nan"), "--cores must be a finite number above 0 (value nan)"),
        (("apply", "cap-cpu", "nosuch", "--cores", "-3"), "--cores must be a finite number above 0 (value -3)"),
        (("apply", "cap-cpu", VM, "--cores", "1", "--seconds", "0"), "--seconds must be a finite number above 0"),
        (("apply", "cap-cpu", VM, "--cores", "1", "--seconds", "inf"), "--seconds must be a finite number"),
        (("undo", "0"), "NUMBER must be an action's number, or all"),
        (("undo", "x"), "NUMBER must be an action's number, or all"),
        (("undo",), "give either NUMBER (or `all`) or --vm VM"),
        (("undo", "1", "--vm", VM), "give either NUMBER (or `all`) or --vm VM"),
        (("undo", "--vm", ""), "--vm must be a VM's UUID or name (value '')"),  # and not all
    ],
)
def test_arguments_that_make_no_sense(monkeypatch, capsys, words, said):
    code, _, err = whitepanda(monkeypatch, capsys, *words)
    assert code == 3
    assert said in err


@pytest.mark.parametrize("vm", [VM, "vm-1"])
async def test_a_vm_is_undone_by_its_uuid_or_name(short, monkeypatch, capsys, vm):
    vms = FakeBackend()
    async with served(short, vms) as path:
        await ask(path, asked())
        words = ("undo", "--vm", vm, "--socket", str(path))
        undone = await asyncio.to_thread(whitepanda, monkeypatch, capsys, *words)
    assert undone == (0, f"action 1: cap-cpu {VM}: undone (limit 2 -> none); on request\n", "")


async def test_a_vm_is_limited_by_its_name_and_not_by_one_that_several_have(short, monkeypatch, capsys):
    twins = [VmIdentity(VM, "web", 1, "e", (1,)), VmIdentity(OTHER, "web", 2, "e", (1,), manager="proxmox")]
    victim = VmIdentity(VICTIM, "db", 3, "e", (1,))
    vms = FakeBackend()

    async def run(path, *words):
        return await asyncio.to_thread(whitepanda, monkeypatch, capsys, *words, "--socket", str(path))

    words = ("apply", "cap-cpu", "web", "--cores", "2", "--victim", "db")
    async with served(short / "twins", vms, listed=[*twins, victim]) as path:
        code, out, err = await run(path, *words)
        refused = f"2 VMs are named 'web': {VM} (libvirt, process 1), {OTHER} (proxmox, process 2); give the UUID"
        assert (code, out, " ".join(err.split())) == (3, "", f"error: {refused}")
        assert vms.writes == []
        assert (await run(path, "undo", "--vm", "web"))[0] == 3
    async with served(short / "alone", vms, listed=[twins[0], victim]) as path:
        assert (await run(path, *words))[1].startswith(f"action 1: cap-cpu {VM}: applied")
        (listing,) = (await ask(path, Ask())).in_force
        assert (listing.record.vm, listing.record.victim) == (VM, VICTIM)


def test_before_a_migration_a_service_need_not_be_there_unless_it_may_have_left_something(short, monkeypatch, capsys):
    state, config = short / "state", short / "agent.toml"
    config.write_text(f'[agent]\n[act]\nsocket = "{short}/none.sock"\nstate_dir = "{state}"\n')

    def run(*words):
        return whitepanda(monkeypatch, capsys, "undo", *words, "--config", str(config))

    nothing, away = (0, "nothing was in force\n", ""), f"no service answers at {short}/none.sock"
    assert run("--vm", VM) == nothing  # it never ran here
    code, out, err = run("--vm", "nosuch")
    assert (code, out) == nothing[:2]
    assert err == "no service runs, so it was not checked whether a VM is named 'nosuch'\n"
    for vm in (VM, "nosuch"):  # a service that was named has to be there
        code, _, err = run("--vm", vm, "--socket", f"{short}/none.sock")
        assert (code, away in err) == (4, True)
    assert away in run("all")[2]  # who asks for more than a VM wants to hear of the service
    log.configure("error")
    actor = make(state, FakeBackend(), journal=(journal := Journal(state)))
    actor.apply(asked(), OPERATOR)
    code, _, err = run("--vm", VM)
    assert code == 4
    assert away in err
    assert run("--vm", OTHER)[0] == 4  # nobody looks into it but the service
    actor.undo(Undo(), OPERATOR)
    journal.close()
    assert run("--vm", VM) == nothing
    (state / "journal.json").write_text("{")
    assert away in run("--vm", VM)[2]
    # A configuration that is not for us to read may name another folder.
    monkeypatch.setattr(command, "find_config", lambda _config: (load(config), None))
    monkeypatch.setattr(command, "DEFAULT_CONFIG", config)
    (state / "journal.json").unlink()
    assert away in run("--vm", VM)[2]


# --- the configuration ---


def test_the_limits_are_the_configurations_and_nothing_is_enabled_by_default(tmp_path):
    limits = msgspec.convert(ActSection(), Limits, from_attributes=True)
    assert (limits.enabled, limits.dry_run) == (False, True)
    for name in limits.__struct_fields__:
        assert getattr(limits, name) == getattr(ActSection(), name)
    journal = Journal(tmp_path / "state")
    section = ActSection(state_dir=str(tmp_path / "state"))
    actor = make_actor(AgentConfig(AgentSection(), act=section), journal)
    with pytest.raises(RefusedError, match=r"act\.enabled is false"):
        actor.apply(asked(), OPERATOR)
    journal.close()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('socket = ""', "act.socket must be a path of 1 to 107 bytes"),
        ('state_dir = "here"', "act.state_dir must be an absolute path (value 'here')"),
        ("max_share = 2.0", "act.max_share must be 0 to 1 (value 2.0)"),
    ],
)
def test_a_configuration_that_cannot_be(tmp_path, line, said):
    file = tmp_path / "agent.toml"
    file.write_text(f"[agent]\n[act]\n{line}\n")
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(file)


# --- virsh ---

SCHEDINFO = """Scheduler      : posix
cpu_shares     : 1024
vcpu_period    : {period}
vcpu_quota     : {quota}
emulator_period: 100000
emulator_quota : -1
global_quota   : 70000
"""


class FakeVirsh:
    """`subprocess.run` of a virsh: one VM of four vCPUs."""

    def __init__(self, quota="-1", period="100000"):
        self.quota, self.period, self.ran, self.answer, self.listed = quota, period, [], None, None

    def __call__(self, words, **named):
        self.ran.append(words)
        assert named["timeout"] == 10.0 and named["env"]["LC_ALL"] == "C"
        if words[4] == "list" and self.listed is not None:
            return self.listed
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        out = SCHEDINFO.format(quota=self.quota, period=self.period)
        if words[4] == "dominfo":
            out = "Id:             1\nCPU(s):         4\n"
        if words[4] == "list":
            out = f"{VM}\n{VICTIM}\n\n"
        if words[-1].startswith("vcpu_quota="):
            self.quota = words[-1].partition("=")[2]
        return subprocess.CompletedProcess(words, 0, out, "")


def failed(text):
    return subprocess.CompletedProcess([], 1, "", f"error: {text}\n")


def test_a_quota_is_set_by_the_command_that_is_recommended():
    virsh = FakeVirsh()
    quota = Quota(Virsh("qemu:///system", 10.0, virsh))
    assert quota.read(VM) == "-1/100000"
    after = quota.target(VM, 1.5)
    assert after == "37500/100000"
    quota.write(VM, after)
    assert virsh.ran[-1] == ["virsh", "-q", "-c", "qemu:///system", "schedinfo", VM, "--live", "vcpu_quota=37500"]
    assert (quota.read(VM), quota.is_ours(after, after)) == (after, True)
    assert quota.command(VM, after) == f"virsh -q -c qemu:///system schedinfo {VM} --live vcpu_quota=37500"
    with pytest.raises(ActError, match=r"can use at most 1\.5 cores already; give fewer \(value 1\.5\)"):
        quota.target(VM, 1.5)
    quota.write(VM, "-1/100000")
    assert quota.read(VM) == "-1/100000"


@pytest.mark.parametrize(("shown", "reported"), [("0", -1), ("18446744073709551", -1), ("25000", 25000)])
def test_what_libvirt_calls_no_quota(shown, reported):
    assert Quota(Virsh("u", 10.0, FakeVirsh(shown, "50000"))).read(VM) == f"{reported}/50000"


def test_a_vm_that_is_gone_is_none_and_another_failure_is_reported():
    virsh = FakeVirsh()
    quota = Quota(Virsh("qemu:///system", 10.0, virsh))
    virsh.answer = failed(f"failed to get domain '{VM}'")
    virsh.listed = subprocess.CompletedProcess([], 0, f"{VICTIM}\n\n", "")
    assert quota.read(VM) is None
    for call in (lambda: quota.target(VM, 1.0), lambda: quota.write(VM, "1/1")):
        with pytest.raises(ActError, match=f"no VM {VM} runs here"):
            call()
    virsh.answer = failed("Cannot recv data:\n  Connection reset")
    with pytest.raises(ActError, match=r"virsh schedinfo .* Cannot recv data: Connection reset$"):
        quota.read(VM)
    virsh.answer = failed("failed to connect to the hypervisor\nerror: No such file or directory")
    with pytest.raises(
        ActError, match=r"virsh schedinfo .*: failed to connect to the hypervisor; No such file"
    ) as reported:
        quota.read(VM)
    assert "error:" not in str(reported.value)
    assert str(reported.value).endswith("; does libvirt run, and is qemu:///system (sources.libvirt.uri) its address?")
    virsh.answer = subprocess.CompletedProcess([], 0, "Scheduler : Unknown\n", "")
    with pytest.raises(ActError, match="no vcpu_quota in its answer; has libvirt the cgroup controller cpu"):
        quota.read(VM)
    virsh.answer = subprocess.TimeoutExpired("virsh", 10.0)
    with pytest.raises(ActError, match="no answer within 10 s; is libvirt's daemon hung"):
        quota.read(VM)
    virsh.answer = FileNotFoundError(2, "No such file or directory")
    with pytest.raises(ActError, match="cannot run virsh: No such file or directory; install libvirt-clients"):
        quota.read(VM)


@pytest.mark.parametrize(
    "listed",
    [
        failed("failed to connect to the hypervisor"),
        failed("failed to get domain"),
        subprocess.CompletedProcess([], 0, f"{VICTIM}\n{VM}\n\n", ""),
    ],
    ids=["away", "away, in other words", "it runs"],
)
def test_a_vm_is_gone_only_where_the_list_of_those_that_run_says_so(listed):
    virsh = FakeVirsh()
    virsh.answer, virsh.listed = failed(f"failed to get domain '{VM}'\nerror: Cannot recv data"), listed
    with pytest.raises(ActError, match="virsh "):
        Quota(Virsh("u", 10.0, virsh)).read(VM)


def test_a_state_is_what_json_keeps():
    request = asked(why='a "quoted" word')
    assert msgspec.json.decode(msgspec.json.encode(request), type=Apply) == request


# --- which VMs run ---


class Looks:
    """An inventory whose looks find a VM at the third one only."""

    def __init__(self, finders=("qemu",)):
        self.finders, self.asked = finders, 0

    def vms(self):
        self.asked += 1
        return (VmIdentity(VM, "web", 1, "e"),) if self.asked > 2 else ()


@pytest.mark.parametrize("wanted", [VM, "web"])
def test_a_vm_that_has_just_begun_is_waited_for(monkeypatch, wanted):
    monkeypatch.setattr(server_module.time, "sleep", lambda _s: None)
    assert [vm.uuid for vm in server_module._vms(Looks(), wanted)] == [VM]


def test_nobody_waits_for_what_no_look_will_find(monkeypatch):
    monkeypatch.setattr(server_module.time, "sleep", lambda _s: pytest.fail("it waited"))
    assert server_module._vms(Looks(), "") == ()  # how many there are
    assert server_module._vms(Looks(finders=()), VM) == ()  # libvirt's status files are read at once


def test_which_vms_run_is_not_known_where_they_cannot_be_listed():
    inventory = Looks()
    inventory.vms = lambda: (_ for _ in ()).throw(SourceError("/run/libvirt/qemu: Permission denied"))
    with pytest.raises(ActError, match="cannot list the VMs: /run/libvirt/qemu: Permission denied"):
        server_module._vms(inventory, "web")


# --- how victims do ---


async def test_how_a_victim_does_is_the_hosts_own_estimate_else_by_its_job(short):
    state = canned_agents.states(short)["full"]
    path = short / "agent.sock"

    async def reported(uuid, cloud_white, signal=""):
        state.cloud_white = cloud_white
        api = LocalApi(state, path)
        await api.start()
        try:
            return await asyncio.to_thread(degradation_of, path, uuid, signal)
        finally:
            await api.stop(0)

    suffers = "uuid-instance-0000a1f3"
    both = canned_agents.suffering()
    assert await reported(suffers, both) == (pytest.approx(1.42), "latency")
    assert await reported(suffers, both, "cpi") == (pytest.approx(3.1 / 1.2), "cpi")
    assert await reported(suffers, None) == (pytest.approx(3.1 / 1.2), "cpi")
    assert await reported(suffers, None, "latency") is None
    assert await reported("uuid-new-1", None) is None
    assert await reported("nobody", None) is None
    assert await asyncio.to_thread(degradation_of, short / "none.sock", suffers) is None
