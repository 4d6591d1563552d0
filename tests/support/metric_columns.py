"""The metrics of a batch by their names, for tests."""

from collections.abc import Sequence

from whitepanda.common.window_columns import BY_NAME, BY_NUMBER, METRIC_COLUMNS
from whitepanda.v1 import agent_pb2

NAMES = frozenset(column.name for column in METRIC_COLUMNS)


def metric_columns(**columns: Sequence[float]) -> agent_pb2.MetricColumns:
    """Make the message of columns of metrics, each with a value per row."""
    ordered = sorted(columns.items(), key=lambda each: BY_NAME[each[0]].number)
    numbers = [BY_NAME[name].number for name, _ in ordered]
    return agent_pb2.MetricColumns(numbers=numbers, values=[value for _, values in ordered for value in values])


def metrics_of(batch: agent_pb2.CpiBatch) -> dict[str, list[float]]:
    """Return the columns of a batch's metrics by name."""
    rows, values = len(batch.task_index), list(batch.metrics.values)
    assert len(values) == rows * len(batch.metrics.numbers)
    return {
        BY_NUMBER[number].name: values[place * rows : (place + 1) * rows]
        for place, number in enumerate(batch.metrics.numbers)
    }


def batch_of(**fields: object) -> agent_pb2.CpiBatch:
    """Make a batch whose fields may be metrics too, by name."""
    columns = {name: fields.pop(name) for name in NAMES & fields.keys()}
    known = {name: values for name, values in columns.items() if values}
    if known:
        fields.setdefault("metrics", metric_columns(**known))
    return agent_pb2.CpiBatch(**fields)
