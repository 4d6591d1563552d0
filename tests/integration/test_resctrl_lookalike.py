"""Our look-alike resctrl (tests/lab/resctrl_fuse.py) does what the kernel does, as far as the sources depend on it."""

from pathlib import Path

import pytest

from tests.support.resctrl_ns import run_inside

pytestmark = pytest.mark.integration


def test_groups_fill_themselves_and_run_out():
    run_inside(
        """
        A.mkdir()
        assert sorted(os.listdir(A)) == ["cpus", "cpus_list", "mon_data", "tasks"]
        assert sorted(os.listdir(A / "mon_data")) == ["mon_L3_00", "mon_L3_02"]
        assert counters(A) == [0] * 6
        (R / "c1").mkdir()
        assert sorted(os.listdir(R / "c1/mon_groups")) == []
        assert error_of(A.mkdir) == errno.EEXIST
        assert error_of((A / "below").mkdir) == error_of((R / "info/x").mkdir) == errno.EPERM
        assert error_of((R / "c2").mkdir) == errno.ENOSPC and status() == "Out of CLOSIDs"
        (R / "c1/mon_groups/b").mkdir()  # RMIDs: the root's, a, c1, b
        assert error_of((R / "mon_groups/d").mkdir) == errno.ENOSPC and status() == "Out of RMIDs"
        os.setxattr(R, "user.limbo_s", b"0.7")
        inode = A.stat().st_ino
        file = (A / "tasks").open()
        A.rmdir()
        assert error_of(file.read) == errno.ENODEV
        assert error_of(A.mkdir) == errno.EBUSY  # in limbo
        time.sleep(0.8)
        A.mkdir()
        assert A.stat().st_ino != inode and status() == "ok"
        (R / "c1").rmdir()
        assert not (R / "c1").exists() and error_of((R / "mon_groups").rmdir) == errno.EPERM
        """,
        "--rmids", "4", "--closids", "2", "--domains", "00,02",
    )  # fmt: skip


def test_tasks_move_and_are_counted():
    run_inside(
        """
        A.mkdir()
        (R / "mon_groups/b").mkdir()
        (R / "c1").mkdir()
        (R / "c1/mon_groups/d").mkdir()
        tid = threading.get_native_id()
        assert str(tid) in (R / "tasks").read_text().split()
        (A / "tasks").write_text(str(tid))
        assert (A / "tasks").read_text() == f"{tid}\\n"
        burn(0.1)
        busy, idle = counters(A), counters(R / "mon_groups/b")
        total = sum(busy[2::3])
        assert 0.045e9 < total < 0.25e9 and idle == [0] * 6, (busy, idle)
        assert abs(sum(busy[1::3]) / 0.8 / total - 1) < 0.1 and sum(busy[0::3]) % 65536 == 0, busy
        assert error_of((R / "c1/mon_groups/d/tasks").write_text, str(tid)) == errno.EINVAL
        (R / "c1/tasks").write_text(str(tid))
        assert (A / "tasks").read_text() == "" and str(tid) not in (R / "tasks").read_text().split()
        (R / "c1/mon_groups/d/tasks").write_text(str(tid))
        assert (R / "c1/tasks").read_text() == f"{tid}\\n"  # those of its monitoring groups too
        (R / "c1").rmdir()
        assert str(tid) in (R / "tasks").read_text().split()
        gone = subprocess.Popen(["true"]); gone.wait()
        assert error_of((A / "tasks").write_text, f"{gone.pid},{tid}") == errno.ESRCH
        assert status() == f"No task {gone.pid}" and (A / "tasks").read_text() == ""
        """
    )


def test_values_on_demand_and_flock():
    run_inside(
        """
        import fcntl
        A.mkdir()
        for answer in ("Unavailable", "Unassigned"):
            os.setxattr(A / "mon_data/mon_L3_01/mbm_total_bytes", "user.answer", answer.encode())
            assert (A / "mon_data/mon_L3_01/mbm_total_bytes").read_text() == answer + "\\n"
        os.setxattr(A / "mon_data/mon_L3_01/mbm_total_bytes", "user.answer", b"")
        assert counters(A) == [0] * 6
        one, other = os.open(R, os.O_RDONLY), os.open(R, os.O_RDONLY)
        fcntl.flock(one, fcntl.LOCK_EX)
        assert error_of(fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB) == errno.EAGAIN
        """
    )


def test_only_root_or_the_owner_moves_a_task_whatever_the_capabilities():
    run_inside(
        """
        A.mkdir()
        ours = subprocess.Popen(["sleep", "20"])
        theirs = subprocess.Popen(["setpriv", "--reuid=4711", "--clear-groups", "sleep", "20"])
        for child in (ours, theirs):
            atexit.register(child.kill)
        while "sleep" not in pathlib.Path(f"/proc/{theirs.pid}/comm").read_text():
            time.sleep(0.05)
        def move(pid, *privileges):
            code = f"import pathlib; pathlib.Path('{A}/tasks').write_text('{pid}')"
            return subprocess.run(
                ["setpriv", *privileges, "--clear-groups", sys.executable, "-c", code], capture_output=True, text=True
            ).stderr
        names = "dac_override dac_read_search fowner kill setuid sys_admin sys_nice sys_ptrace"
        wanted = ",".join(f"+{name}" for name in names.split())
        everything = [f"--inh-caps={wanted}", f"--ambient-caps={wanted}"]
        def check(expected, pid, *privileges):
            said = move(pid, *privileges)
            assert expected in said if expected else not said, said
        check("Operation not permitted", ours.pid, "--reuid=4711", *everything)
        assert status() == f"No permission to move task {ours.pid}", status()
        check("Permission denied", theirs.pid, "--reuid=4711")  # the file is root's
        check("", theirs.pid, "--reuid=4711", *everything)
        check("", ours.pid, "--bounding-set=-all")
        assert (A / "tasks").read_text().split() == sorted([str(ours.pid), str(theirs.pid)])
        """
    )


def test_nothing_is_seen_outside():
    run_inside("assert 'resctrl' in pathlib.Path('/proc/filesystems').read_text()")
    assert "fuse.resctrl" not in Path("/proc/mounts").read_text()
    assert not Path("/sys/fs/resctrl/info/L3_MON/num_rmids").exists() or "rdt_a" in Path("/proc/cpuinfo").read_text()


def test_the_one_who_has_groups_is_known_by_a_lock():
    run_inside(
        """
        sys.path.insert(0, ROOT)
        from collector.base import SourceError
        from collector.resctrl.tree import Tree
        one, other = Tree(str(R)), Tree(str(R))
        one.open()
        for attempt in (other.open, other.check_owner):
            try:
                attempt()
            except SourceError as error:
                assert "another whitepanda" in str(error)
            else:
                raise AssertionError(attempt)
        one.close()
        other.open()
        """.replace("ROOT", repr(str(Path(__file__).parents[2])))
    )
