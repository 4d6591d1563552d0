"""The examples of docs/extend.md are complete: they are run as they stand there."""

import importlib.util
import json
import math
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest

from agent.sampling.rates import Limits
from agent.sampling.vms import JobRules, VmTable
from central.build.builder import Builder
from central.build.methods import METHODS
from central.config import BuildSection
from central.lake.segments import Lake
from central.models.antagonists.slots import SLOTS_PER_DAY, TaskSlots
from collector.base import InterfaceDevice, Reason, Source, VmIdentity
from collector.registry import SourceSpec, build_sources
from tests.unit.central.build.test_builds import write_day

PAGE = Path(__file__).resolve().parents[3] / "docs" / "extend.md"
BLOCKS = [
    re.sub(r"^   ", "", b, flags=re.MULTILINE) if b.startswith("   ") else b
    for b in re.findall(r"^ *```python\n(.*?)^ *```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
]
S = 10**9


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A block of the page as a module of its own."""

    def loaded(text, name, **given):
        path = tmp_path / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        made = importlib.util.module_from_spec(spec)
        made.__dict__.update(given)
        monkeypatch.setitem(sys.modules, name, made)  # dataclasses look their module up
        spec.loader.exec_module(made)
        return made

    return loaded


@pytest.fixture
def host(tmp_path):
    """A host's /sys with one tap, and two VMs of which one's device is not there."""
    folder = tmp_path / "class" / "net" / "tap1"
    (folder / "statistics").mkdir(parents=True)
    (folder / "ifindex").write_text("7\n")

    def write(**counts):
        for direction in ("rx", "tx"):
            for what in ("bytes", "packets", "dropped"):
                (folder / "statistics" / f"{direction}_{what}").write_text(f"{counts.get(f'{direction}_{what}', 0)}\n")

    vms = tuple(VmIdentity(f"u{n}", f"vm{n}", 100 + n, "e", interfaces=(InterfaceDevice(f"tap{n}"),)) for n in (1, 2))
    inventory = types.SimpleNamespace(vms=lambda: vms)
    return types.SimpleNamespace(root=tmp_path, write=write, inventory=inventory)


def test_the_source_is_one_and_its_counters_become_rates(host, load):
    made = load(BLOCKS[0], "taps_example")
    row = load(f"row = {BLOCKS[1]}", "row_example", SourceSpec=SourceSpec, TapsSource=made.TapsSource).row
    section = types.SimpleNamespace(mode="required", root=str(host.root))
    ((source, mode),) = build_sources(types.SimpleNamespace(taps=section), host.inventory, specs=[row])
    assert mode == "required"
    assert isinstance(source, Source)
    assert source.probe().available
    source.open()
    table = VmTable(JobRules([]), Limits(0.2, 0.01), 60 * S, lambda _name: None)
    samples = []
    for counts in ({"rx_bytes": 1000, "tx_bytes": 50}, {"rx_bytes": 4000, "tx_bytes": 50, "tx_dropped": 3}):
        host.write(**counts)
        samples.append(source.sample())
        table.update(samples[-1:], samples[-1].mono_ns)
    vm = next(vm for vm in table if vm.identity.name == "vm1")
    seconds = (samples[1].mono_ns - samples[0].mono_ns) / S
    assert vm.rates.network_transmit_bytes_per_s * seconds == pytest.approx(3000)
    assert vm.rates.network_receive_bytes_per_s == 0
    assert vm.rates.network_receive_drops_per_s * seconds == pytest.approx(3)
    other = next(vm for vm in table if vm.identity.name == "vm2")
    assert other.rates.network_receive_bytes_per_s is Reason.NOT_PRESENT
    source.close()


def test_the_source_says_what_it_lacks(tmp_path, load):
    made = load(BLOCKS[0], "taps_example")
    probe = made.TapsSource(None, str(tmp_path)).probe()
    assert (probe.available, probe.reason) == (False, Reason.NOT_PRESENT)
    assert probe.detail == f"no {tmp_path}/class/net: mount sysfs"


def day_of(day, raised=()):
    """Two latency-sensitive tasks, and three of batch; in `raised` slots CPI is 2 and job 6 uses thrice its usual."""
    rows = []
    for slot in range(SLOTS_PER_DAY):
        place = day * SLOTS_PER_DAY + slot
        rows += [
            (0, place, 100 + job, job, 0, True, 0.05, 2.0 if slot in raised else (1.0, 1.2)[(slot + job) % 2])
            for job in (1, 2)
        ]
        rows += [
            (0, place, 100 + job, job, 0, False, usage * (3 if job == 6 and slot in raised else 1), np.nan)
            for job, usage in ((5, 0.3), (6, 0.1), (7, 0.2))
        ]
    return TaskSlots(*(np.array(column) for column in zip(*rows, strict=True)))


def test_the_method_finds_who_does_more_than_usual(load, capsys):
    raised = (100, 101, 102, 103)
    days = [(0, day_of(0)), (1, day_of(1)), (2, day_of(2, raised))]
    made = load(BLOCKS[2], "unusual_example")
    load(BLOCKS[3], "protocol_example", Unusual=made.Unusual, days=days, antagonists=np.array([6]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "unusual: mean percentile 1.000 at 2 events"
    assert [line.partition(":")[0] for line in lines] == ["unusual", "panda", "whitepanda"]


def test_no_other_code_is_on_the_page():
    assert len(BLOCKS) == 9


def test_a_build_uses_the_method(tmp_path, load, monkeypatch):
    made = load(BLOCKS[4], "mean_usage_example")
    monkeypatch.setitem(METHODS, "mean_usage", made.MEAN_USAGE)
    lake = Lake(tmp_path / "lake")
    days = [write_day(lake, day, day + 1) for day in range(2)]
    builder = Builder(BuildSection(memory_limit_mib=256, threads=1, method="mean_usage"), lake)
    assert builder.build_once() == 1
    assert builder.current.manifest.method == "mean_usage"
    usage, jobs = (np.concatenate([day[name] for day in days]) for name in ("cpu_usage_cores", "job"))
    for job in np.unique(jobs):
        found = builder.current.coefficient(str(job))
        assert (found.value, found.samples) == (pytest.approx(usage[jobs == job].mean()), (jobs == job).sum())
        assert (found.method, math.isnan(found.standard_error)) == ("mean_usage", True)
        assert len(builder.current.statistics(str(job))) == 1


#: Runs with changed sources of two modules, given as JSON {module: text}, and then a block of the page.
WITH_METRIC = """
import importlib.util, json, sys

given = json.load(sys.stdin)
for name in ("whitepanda.common.window_columns", "agent.sampling.metric_table", "agent.sampling.rates"):
    spec = importlib.util.find_spec(name)
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    exec(compile(given[name], spec.origin, "exec"), made.__dict__)
exec(given["test"])
test_the_mean_size_of_a_read()

from agent.api.prometheus_text import family_name
from agent.display.numbers import NUMBERS
from agent.sampling.metric_table import VM_METRICS
from tools.generate_docs import metrics_page

from agent.sampling.deltas import delta
from agent.sampling.rates import Limits
from agent.sampling.windows import WindowAccumulator
from agent.uplink.batches import encode
from central.lake.schema import SAMPLES
from tests.unit.agent.agent_fakes import joined

windows = WindowAccumulator((10**10, 10**10), 10**9, Limits())
windows.add("u", "e", ("vm", "job", False), delta(joined(12), joined(10)))
batch = encode(windows.flush(), spool_id="s", sequence=1)
assert batch.metrics.values[list(batch.metrics.numbers).index(40)] == 10
assert "disk_read_size_bytes" in SAMPLES.names

metric = next(metric for metric in VM_METRICS if metric.name == "disk_read_size_bytes")
found = [family_name(metric), *NUMBERS[metric.title].metrics, NUMBERS[metric.title].show(12_000)]
print(json.dumps([*found, "| `disk_read_size_bytes` | gauge | bytes |" in metrics_page()]))
"""


def changed(path, old, new):
    """The text of a source with the one line that begins with `old` followed, or replaced, by others."""
    text = (PAGE.parents[1] / path).read_text(encoding="utf-8")
    (line,) = re.findall(rf"^ *{re.escape(old)}.*$", text, re.MULTILINE)
    return text.replace(line, new(line))


def test_a_metric_is_a_row_and_its_arithmetic():
    row, arithmetic, test, window = (textwrap.indent(block.rstrip(), "    ") for block in BLOCKS[5:])
    given = {
        "whitepanda.common.window_columns": changed(
            "proto/whitepanda/common/window_columns.py",
            'WindowColumn(39, "core_stall_ratio"',
            lambda line: f"{line}\n{window},",
        ),
        "agent.sampling.metric_table": changed(
            "agent/sampling/metric_table.py", "disk_write_ops_per_s:", lambda line: f"{line}\n{row}"
        ),
        "agent.sampling.rates": changed(
            "agent/sampling/rates.py", "return disk.read_bytes * per_s", lambda _line: arithmetic
        ),
        "test": textwrap.dedent(test),
    }
    done = subprocess.run(
        [sys.executable, "-c", WITH_METRIC],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        cwd=PAGE.parents[1],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["whitepanda_vm_disk_read_size_bytes", "disk_read_size_bytes", "12K", True]
