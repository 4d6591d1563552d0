"""The host's facts from files of a kernel; what is missing is absent."""

from agent.facts.host import real_facts


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_facts_of_a_host(tmp_path):
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    write(proc / "meminfo", "MemTotal:       65536 kB\nMemFree: 1 kB\n")
    write(sys / "devices/system/cpu/online", "0-3\n")
    for cpu in range(4):
        for index, (level, size, shared) in enumerate(((1, "32K", str(cpu)), (3, "16M", "0-1" if cpu < 2 else "2-3"))):
            folder = sys / f"devices/system/cpu/cpu{cpu}/cache/index{index}"
            for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared)):
                write(folder / name, f"{text}\n")
    for card, speed in (("eth0", "25000"), ("eth1", "-1"), ("tap0", "10")):
        write(sys / f"class/net/{card}/speed", f"{speed}\n")
        if card != "tap0":
            (sys / f"class/net/{card}/device").mkdir()
    write(sys / "block/sda/size", "2048\n")
    write(sys / "block/sda/queue/rotational", "1\n")
    (sys / "block/sda/device").mkdir()
    write(sys / "block/loop0/size", "2048\n")
    facts = real_facts({"rack": "r1"}, proc, sys)
    assert (facts.cpus, facts.memory_bytes, dict(facts.labels)) == (4, 65536 * 1024, {"rack": "r1"})
    assert [(one.first_cpu, one.cpus, one.size_bytes) for one in facts.caches] == [(0, 2, 16 << 20), (2, 2, 16 << 20)]
    cards = [(card.name, card.bits_per_s if card.HasField("bits_per_s") else None) for card in facts.network_cards]
    assert cards == [("eth0", 25 * 10**9), ("eth1", None)]
    assert [(disk.name, disk.size_bytes, disk.rotational) for disk in facts.disks] == [("sda", 1 << 20, True)]


def test_what_cannot_be_read_is_absent(tmp_path):
    facts = real_facts({}, tmp_path / "none", tmp_path / "none")
    assert facts.ByteSize() == 0
