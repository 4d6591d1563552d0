"""The columns of the lake's samples: what ingest writes and builds read. One row is one CPI window of one task."""

import pyarrow as pa

#: Written into every segment's metadata as `whitepanda.schema`.
SCHEMA_VERSION = 1

#: A value that is not known is null. `machine` is where the task ran: the host itself, or an imported trace's machine.
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
        pa.field("cpi", pa.float64()),
        pa.field("cpu_usage_cores", pa.float64(), nullable=False),
        pa.field("cycles", pa.int64()),
        pa.field("instructions", pa.int64()),
        pa.field("running_ratio", pa.float64()),
        pa.field("run_queue_wait_ratio", pa.float64()),
        pa.field("disk_bytes_per_s", pa.float64()),
        pa.field("network_bytes_per_s", pa.float64()),
        pa.field("llc_occupancy_bytes", pa.float64()),
        pa.field("memory_bandwidth_bytes_per_s", pa.float64()),
        pa.field("memory_stall_ratio", pa.float64()),
        pa.field("io_wait_ratio", pa.float64()),
    ]
)
