"""What the script cannot see: literal replacements by stage (room; "tests"; "last"), and the messages of commits."""
FIXES = {
    "last": [
        ("tests/unit/central/build/test_quiet_duckdb.py", "from central import quiet_duckdb\n", "from central.build import duckdb_connection\n"),
        ("tests/unit/central/build/test_quiet_duckdb.py", '("quiet_duckdb", True)', '("duckdb_connection", True)'),
        ("tests/unit/central/build/test_quiet_duckdb.py", 'endswith("duckdb.connect")', 'endswith(("duckdb.connect", "duckdb_connection.connect"))'),
        ("tests/unit/central/build/test_quiet_duckdb.py", '!= "quiet_duckdb.connect"', '!= "duckdb_connection.connect"'),
        ("tests/unit/agent/test_daemon.py", '"agent.daemon.build_sources"', '"agent.sampling.startup.build_sources"'),
        # Engines know the encoding, and it does not know them.
        ("central/build/dictionary_encoding.py", """from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from central.build.engine import Engine
    from central.build.spark import SparkEngine

__all__ = ["CodedSlots", "coded", "numbered"]
""", """from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import ibis.expr.types as ir
    import pyarrow as pa

__all__ = ["CodedSlots", "Opened", "coded", "numbered"]


class Opened(Protocol):
    \"\"\"An engine, as far as names are encoded on it.\"\"\"

    def read(self, paths: Iterable[Path]) -> ir.Table:
        \"\"\"Return Parquet files of one schema as one table.\"\"\"

    def collect(self, table: ir.Table) -> pa.Table:
        \"\"\"Run an expression and return its rows.\"\"\"

    def write(self, table: ir.Table, path: Path) -> int:
        \"\"\"Run an expression and write its rows to a Parquet file. Returns how many.\"\"\"
"""),
        ("central/build/dictionary_encoding.py", "def coded(opened: Engine | SparkEngine, slots", "def coded(opened: Opened, slots"),
        # Programs beside a study.
        ("bench/ingest/study.py", 'with_name("ingest_agents.py")', 'with_name("agents.py")'),
        ("bench/ingest/study.py", 'with_name("ingest_server.py")', 'with_name("server.py")'),
        ("bench/hostile/study.py", '_HERE / "hostile_host.py"', '_HERE / "host.py"'),
        ("bench/hostile/study.py", '_HERE.parent / "build"', '_HERE.parents[1] / "build"'),
        ("docs/architecture.md", "`agent/analysis/{antagonists,trigger}.py`", "`agent/analysis/antagonists/panda.py`, `trigger.py`"),
        ("tests/unit/house/test_docs.py", 'for path in (ROOT / "central").glob("*.py")', 'for room in ("ingest", "validation")\n        for path in (ROOT / "central" / room).glob("*.py")'),
        # Lines that cannot be wrapped.
        ("agent/antagonists/events.py", "as `agent.antagonists.decisions` holds it", "as `decisions` holds it"),
        ("agent/detection/verdicts.py", "(`agent.detection.cloud_white`)", "(`cloud_white`)"),
        ("agent/sampling/deltas.py", "(see `agent.sampling.rates.derive`)", "(see `rates.derive`)"),
        ("agent/sampling/perf_deltas.py", "Pure, as `agent.sampling.deltas`, which", "Pure, as `deltas`, which"),
        ("bench/dfactor/pairs.py", "Real pairs for bench/dfactor/study.py:", "Real pairs for `study`:"),
        ("bench/ingest/prometheus.py", "What bench/ingest/study.py stands beside", "What `study` stands beside"),
        ("bench/ingest/server.py", "for bench/ingest/study.py:", "for `study`:"),
        ("central/build/estimator.py", "machine days by `central.build.machine_days`", "machine days by `machine_days`"),
        ("central/build/spark.py", "a kernel of `central.build.machine_days`", "a kernel of `machine_days`"),
        ("central/degradation/trees.py", "for `agent.analysis.degradation.trees`", "for `agent.analysis.degradation`"),
        ("tests/bench/test_dfactor_bars.py", "D-Factor's bars by bench/dfactor/study.py's own parts", "D-Factor's bars by the study's own parts"),
        ("tests/unit/agent/canned_agents.py", "`agent.detection.cloud_white.CloudWhite`", "`CloudWhite`"),
        ("tests/unit/central/roll_ups/test_compaction.py", "from central.lake.segments import Lake; from central", 'from central.lake.segments import Lake; "\n        "from central'),
        ("tools/run_tests.py", 'f"--ignore-glob={_AGENT}/{_FIRST}"', 'f"--ignore-glob={_AGENT}*/{_FIRST}"'),
        ("tools/run_tests.py", 'f"--ignore-glob={_AGENT}/{_SECOND}"', 'f"--ignore-glob={_AGENT}*/{_SECOND}"'),
        # The room of coefficients does not know the room of builds.
        ("central/coefficients/publish.py", "from central.build.builder import Builder\n", ""),
        ("central/coefficients/publish.py", "        builder: has the version in force.\n", "        versions: has the version in force.\n"),
        ("central/coefficients/publish.py", "registry: StreamRegistry, builder: Builder, *,", "registry: StreamRegistry, versions: Versions, *,"),
        ("central/coefficients/publish.py", "self._builder = builder\n", "self._versions = versions\n"),
        ("central/coefficients/publish.py", "self._builder.", "self._versions."),
        ("central/coefficients/publish.py", "        builder.on_version.append(", "        versions.on_version.append("),
        ("central/coefficients/publish.py", "from collections.abc import Iterable\n", "from collections.abc import Callable, Iterable\n"),
        ("central/coefficients/publish.py", "from typing import NamedTuple\n", "from typing import NamedTuple, Protocol\n"),
        ("central/coefficients/publish.py", "class _Rows(NamedTuple):\n", '''class Versions(Protocol):
    """Who knows the version in force; `central.build.builder.Builder`."""

    on_version: list[Callable[[BuiltVersion], None]]

    @property
    def current(self) -> BuiltVersion | None:
        """The version in force; None: there is none yet."""

    async def catch_up(self) -> None:
        """Take a newer version of another replica, where there is one.

        Raises:
            OSError, LakeError: the lake cannot be read.

        """


class _Rows(NamedTuple):
'''),
        # The room of antagonists does not know the local API.
        ("agent/antagonists/advice.py", "from collections.abc import Mapping, Sequence\n", "from collections.abc import Collection, Mapping, Sequence\n"),
        ("agent/antagonists/advice.py", "from typing import Protocol\n", "from typing import TYPE_CHECKING, Protocol\n"),
        ("agent/antagonists/advice.py", "from agent.api.state import AgentState\n", ""),
        ("agent/antagonists/advice.py", "def __init__(self, state: AgentState, store", "def __init__(self, state: State, store"),
        ("agent/antagonists/advice.py", '__all__ = ["Advisor", "Coefficients", "limits_of"]\n', '''if TYPE_CHECKING:
    from agent.antagonists.decisions import Decisions
    from agent.antagonists.host_analysis import HostAnalysis
    from agent.detection.cloud_white import CloudWhite

__all__ = ["Advisor", "Coefficients", "State", "limits_of"]


class Now(Protocol):
    """The moment of a state."""

    @property
    def now_unix_ns(self) -> int:
        """Unix time."""


class State(Protocol):
    """What the agent knows, as far as advice needs it: a part of `agent.api.state.AgentState`."""

    @property
    def analysis(self) -> HostAnalysis | None:
        """Antagonists on this host."""

    @property
    def cloud_white(self) -> CloudWhite | None:
        """Who suffers and who inflicts it."""

    @property
    def decisions(self) -> Decisions | None:
        """The decision on each VM."""

    def host(self) -> Now:
        """Return the host's status now."""

    def vms(self, metrics: Collection[str] | None = None) -> tuple[VmView, ...]:
        """Return all VMs now, with the metrics of these names; None: with all."""
'''),
    ],
}
MESSAGES = {"last": "Rooms: contracts between them; the tool that moved them goes"}


def last():
    """The contracts between rooms, behind the others."""
    import re
    from pathlib import Path

    study = Path("bench/cloud_white/study.py")
    imported = r"from bench\.cloud_white import (?:figures, floor, readings, tables|\(\s+figures,\s+floor,\s+readings,\s+tables,\s+\)).*"
    line = "from bench.cloud_white import figures, floor, readings, tables  # noqa: E402 - numpy must find the threads set above"
    study.write_text(re.sub(imported, line, study.read_text()))
    project = Path("pyproject.toml")
    text = project.read_text()
    contracts = (Path(__file__).parent / "contracts.toml").read_text()
    if contracts.strip() not in text:
        before, mark, after = text.partition("\n[tool.pytest.ini_options]\n")
        project.write_text(before + contracts + mark + after)
