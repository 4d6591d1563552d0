"""The columns of the lake's samples: what ingest writes and builds read. One row is one CPI window of one task.

A further column is a row of `whitepanda.common.window_columns`.
"""

import pyarrow as pa

from whitepanda.common.window_columns import METRIC_COLUMNS, ROUNDED_DIGITS

#: Written into every segment's metadata as `whitepanda.schema`.
SCHEMA_VERSION = 1

#: A value that is not known is null. `machine` ran the task: the host itself, or an imported trace's machine.
#: (host, spool_id, sequence) identifies a batch; the reading view takes every batch from one segment only.
SAMPLES = pa.schema(
    [
        pa.field("host", pa.string(), nullable=False),
        pa.field("spool_id", pa.string(), nullable=False),
        pa.field("sequence", pa.uint64(), nullable=False),
        pa.field("machine", pa.string(), nullable=False),
        pa.field("vm", pa.string(), nullable=False),
        pa.field("epoch", pa.string(), nullable=False),
        pa.field("job", pa.string(), nullable=False),
        pa.field("platform", pa.string(), nullable=False),
        pa.field("latency_sensitive", pa.bool_(), nullable=False),
        pa.field("start_unix_ns", pa.int64(), nullable=False),
        pa.field("duration_ns", pa.int64(), nullable=False),
        *(pa.field(name, pa.float64(), nullable=name != "cpu_usage_cores") for name in ("cpi", "cpu_usage_cores")),
        *(pa.field(column.name, pa.float32()) for column in METRIC_COLUMNS),
    ]
)
#: Columns with hardly two values alike: a dictionary would only make them larger.
SPLIT_COLUMNS = frozenset(
    ("cpi", "cpu_usage_cores", *(column.name for column in METRIC_COLUMNS if column.digits > ROUNDED_DIGITS))
)
