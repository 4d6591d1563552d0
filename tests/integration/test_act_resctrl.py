"""CAT and MBA limits of `whitepanda act` in the resctrl look-alike: set on a VM's threads, and all of it undone.

The VM is a process with three threads.
"""

import json

import pytest

from tests.support.resctrl_ns import run_inside

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(120)]

# A VM `VM` whose process has three threads; backends for it; and what the kernel shows.
VM = """
import json
from agent.act.records import ActError
from agent.act.resctrl import Resctrl
VM = "00000000-0000-4000-8000-000000000001"
CODE = "import threading, time\\nfor _ in range(2):\\n "
CODE += "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\\n"
CODE += "print('ready', flush=True)\\ntime.sleep(99)"
process = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE)
atexit.register(lambda: (process.kill(), process.wait(), process.stdout.close()))
process.stdout.readline()
TIDS = sorted(int(name) for name in os.listdir(f"/proc/{process.pid}/task"))
GROUP = R / f"whitepanda-act-{VM}"
def pid_of(vm):
    return process.pid if vm == VM else None
cache, bandwidth = (Resctrl(action, R, pid_of) for action in ("limit-cache", "limit-bandwidth"))
FULL = "L3:0=fff;1=fff MB:0=100;1=100"
def tids():
    return sorted(map(int, (GROUP / "tasks").read_text().split()))
def schemata():
    return sorted(line.strip() for line in (GROUP / "schemata").read_text().splitlines())
def said(call, *arguments):
    try:
        call(*arguments)
    except ActError as error:
        return str(error)
"""


def inside(code, *options):
    return json.loads(run_inside(VM + code, *options).splitlines()[-1])


def test_ways_and_bandwidth_are_limited_and_given_back():
    found = inside("""
found = {"tids": TIDS, "before": [cache.read(VM), bandwidth.read(VM)]}
for name, backend, amount in (("cache", cache, 3), ("bandwidth", bandwidth, 25)):
    state = backend.target(VM, amount)
    backend.write(VM, state)
    found[name] = [state, schemata(), tids(), backend.read(VM) == state, backend.is_ours(backend.read(VM), state)]
    backend.write(VM, "")
    found[name] += [GROUP.exists(), backend.read(VM)]
print(json.dumps(found))
""")
    assert found["before"] == ["", ""]
    assert len(found["tids"]) == 3
    assert found["cache"] == [
        "L3:0=7;1=7 MB:0=100;1=100",
        ["L3:0=007;1=007", "MB:0=100;1=100"],
        found["tids"],
        True,
        True,
        False,
        "",
    ]
    assert found["bandwidth"][:2] == ["L3:0=fff;1=fff MB:0=30;1=30", ["L3:0=fff;1=fff", "MB:0= 30;1= 30"]]
    assert found["bandwidth"][2:] == [found["tids"], True, True, False, ""]


def test_a_vm_in_a_group_of_someone_else_is_left_alone():
    found = inside("""
other = R / "theirs"
other.mkdir()
(other / "tasks").write_text(f"{TIDS[1]}\\n")
print(json.dumps([said(cache.target, VM, 3), GROUP.exists(), said(cache.write, VM, FULL), GROUP.exists()]))
""")
    reported = "is in the control group theirs of another program"
    assert reported in found[0] and reported in found[2]
    assert (found[1], found[3]) == (False, False)


def test_what_a_kill_left_half_done_is_ours_and_what_others_made_of_it_is_not():
    found = inside("""
after = cache.target(VM, 3)
GROUP.mkdir()
fresh = cache.read(VM)
(GROUP / "schemata").write_text("L3:0=1;1=7\\n")
theirs = cache.read(VM)
found = [fresh, cache.is_ours(fresh, after), cache.is_ours(theirs, after)]
cache.write(VM, "")
cache.write(VM, "")  # twice is as once
print(json.dumps([*found, GROUP.exists()]))
""")
    assert found == ["L3:0=fff;1=fff MB:0=100;1=100", True, False, False]


def test_what_cannot_be_said_why():
    found = inside(
        """
gone = Resctrl("limit-cache", R, lambda vm: None)
none = Resctrl("limit-cache", pathlib.Path("/mnt/none"), pid_of)
found = [said(cache.target, VM, 12), said(gone.target, VM, 3), gone.read(VM), said(none.target, VM, 3)]
(R / "other").mkdir()
found.append(said(cache.write, VM, cache.target(VM, 3)))
print(json.dumps(found))
""",
        "--closids",
        "2",
    )
    assert "ways must be 1 to 11 on this host (value 12)" in found[0]
    assert "no VM" in found[1]
    assert found[2] is None
    assert "no resctrl; needs a CPU with RDT" in found[3]
    assert "Out of CLOSIDs" in found[4] and "num_closids" in found[4]


def test_the_service_limits_by_resctrl_and_undoes_it_at_its_end():
    """The actor, journal and audit log on the look-alike; it ends as by SIGTERM, and as by kill -9."""
    found = inside("""
import tempfile
from agent.act.journal import Journal
from tests.unit.agent.act_fakes import asked, make, OPERATOR
folder = pathlib.Path(tempfile.mkdtemp())
found = []
for action, amount in (("limit-cache", 2.0), ("limit-bandwidth", 40.0)):
    journal = Journal(folder / action)
    actor = make(folder / action, cache if action == "limit-cache" else bandwidth, journal=journal)
    done = actor.apply(asked(action=action, amount=amount), OPERATOR)
    found.append([done.result, tids() == TIDS, schemata()])
    journal.close()  # as a kill does
    again = make(folder / action, actor.backends[action], clock=actor.clock)
    actor.clock.advance(900)
    found.append([[one.result for one in again.start()], GROUP.exists()])
print(json.dumps(found))
""")
    assert found == [
        ["applied", True, ["L3:0=003;1=003", "MB:0=100;1=100"]],
        [["undone"], False],
        ["applied", True, ["L3:0=fff;1=fff", "MB:0= 40;1= 40"]],
        [["undone"], False],
    ]
