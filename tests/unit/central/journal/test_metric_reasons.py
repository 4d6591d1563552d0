import pytest

from central.journal import metric_reasons
from central.journal.database import open_database, transaction
from central.journal.metric_reasons import KnownReason
from central.validation.metric_reasons import ReasonRow
from whitepanda.v1.agent_pb2 import REASON_IDLE, REASON_NO_PMU


@pytest.fixture
def journal(tmp_path):
    path = tmp_path / "journal.sqlite"
    connection = open_database(path, 0)

    def write(*rows: ReasonRow) -> None:
        transaction(connection, lambda _: metric_reasons.write(connection, rows))

    yield path, write
    connection.close()


def row(reason: int, since: int, *, vm: str = "v", metric: int = 5, host: str = "h") -> ReasonRow:
    return ReasonRow(host, vm, metric, int(reason), since)


def known(reason: int, since: int, until: int | None = None, *, metric: int = 5, host: str = "h") -> KnownReason:
    return KnownReason(host, "v", metric, int(reason), since, until)


def test_a_reason_holds_since_it_first_came_and_until_it_changes(journal):
    path, write = journal
    write(row(REASON_NO_PMU, 10), row(REASON_IDLE, 10, metric=1))
    write(row(REASON_NO_PMU, 20))  # sent again, as the stream began anew
    assert metric_reasons.read(path, ["v"]) == [known(REASON_IDLE, 10, metric=1), known(REASON_NO_PMU, 10)]
    write(row(0, 30, metric=1), row(REASON_IDLE, 30))
    assert metric_reasons.read(path, ["v"]) == [
        known(REASON_IDLE, 10, 30, metric=1),
        known(REASON_NO_PMU, 10, 30),
        known(REASON_IDLE, 30),
    ]


def test_a_reason_that_comes_and_goes_is_one_row(journal):
    path, write = journal
    for since in range(0, 100, 20):
        write(row(REASON_IDLE, since), row(0, since + 10))
    assert metric_reasons.read(path, ["v"]) == [known(REASON_IDLE, 0, 90)]
    write(row(REASON_IDLE, 100))
    assert metric_reasons.read(path, ["v"]) == [known(REASON_IDLE, 0)]


def test_a_batch_that_comes_late_changes_nothing(journal):
    path, write = journal
    write(row(REASON_NO_PMU, 10))
    write(row(REASON_IDLE, 5), row(0, 5))
    assert metric_reasons.read(path, ["v"]) == [known(REASON_NO_PMU, 10)]
    write(row(REASON_NO_PMU, 20))  # sent again; behind it comes what waited during an outage
    write(row(REASON_IDLE, 15))
    assert metric_reasons.read(path, ["v"]) == [known(REASON_NO_PMU, 10)]
    write(row(0, 30))
    write(row(REASON_NO_PMU, 25))
    assert metric_reasons.read(path, ["v"]) == [known(REASON_NO_PMU, 10, 30)]


def test_only_the_vms_asked_for_on_all_hosts(journal):
    path, write = journal
    write(row(REASON_IDLE, 1), row(REASON_IDLE, 2, host="h2"), row(REASON_IDLE, 3, vm="w"))
    assert metric_reasons.read(path, ["v", "v", "gone"]) == [known(REASON_IDLE, 1), known(REASON_IDLE, 2, host="h2")]


def test_a_host_has_a_bounded_number(journal, monkeypatch):
    path, write = journal
    monkeypatch.setattr(metric_reasons, "_MAX_OF_HOST", 3)
    write(*(row(REASON_IDLE, since, vm=f"v{since}") for since in range(5)))
    write(row(REASON_IDLE, 0, host="h2", vm="v0"))
    found = metric_reasons.read(path, [f"v{n}" for n in range(5)])
    assert [(one.host, one.vm) for one in found] == [("h", "v2"), ("h", "v3"), ("h", "v4"), ("h2", "v0")]
