"""What both ends of the agent stream must agree on: versions, limits, keepalive.

The messages are in whitepanda/v1/agent.proto.
"""

import math

#: The newest version that this code speaks, and the oldest.
PROTOCOL_VERSION = 1
MIN_PROTOCOL_VERSION = 1

#: Key of a trailing metadatum of each error of the fleet API: the request's field that is wrong, or "". gRPC's own
#: errors do not have it.
ERROR_FIELD = "whitepanda-field"

#: What a sender keeps to before (or without) a Welcome that says otherwise.
MAX_BATCH_ROWS = 10_000
MAX_MESSAGE_BYTES = 4 << 20
#: A batch whose spool_id, tasks and task_index have more bytes is always sent whole.
MAX_HEAD_BYTES = 32 << 10
DEFAULT_HEARTBEAT_MS = 10_000

# HTTP/2 pings detect a peer that is gone (power cut, dropped by a firewall): one is sent after 50 s of silence, and the
# connection closed 10 s later; with pings after 20 s, ten thousand silent streams cost a twentieth of a core. gRPC
# servers by default hang up on clients that ping more often than every 5 minutes, so both sides must agree.
#
# gRPC's pings that estimate the bandwidth-delay product are off: a peer too busy to read the answer for 10 s hung up on
# a healthy one (central, 11 s after 10,000 agents with a backlog began). They also let each peer send 4 MB ahead;
# without, it is 64 KiB (or one larger message) per connection and round trip, 580 kB/s over 100 ms.
_KEEPALIVE_MS = 50_000
_KEEPALIVE_TIMEOUT_MS = 10_000
_CHANNEL_OPTIONS = (
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),  # 60 s by default
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.bdp_probe", 0),
)

#: Options of an agent's channel.
CLIENT_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_CHANNEL_OPTIONS,
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.max_send_message_length", 2 * MAX_MESSAGE_BYTES),
    # Each uplink has a separate connection and back-off (agent.uplink.client), jittered over all of it.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)

#: Options of central's server; it adds its own limit of the message length.
SERVER_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_CHANNEL_OPTIONS,
    ("grpc.keepalive_time_ms", 2 * _KEEPALIVE_MS),  # agents ping; it is for those whose pings have stopped
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 4),
    ("grpc.so_reuseport", 0),  # two centrals must never share a port by accident
)


def or_nan(value: float | None) -> float:
    """Return a number as columns and fields of doubles have it: NaN if unknown."""
    return math.nan if value is None else value


def agree(newest: int, oldest: int) -> int | None:
    """Return the newest version that both sides speak, or None, from those of the peer; `oldest` 0: as `newest`."""
    version = min(newest, PROTOCOL_VERSION)
    return version if version >= max(oldest or newest, MIN_PROTOCOL_VERSION) else None


def version_span(oldest: int, newest: int) -> str:
    """Return versions as people read them, such as "1 to 3". `oldest` 0: the same as `newest`."""
    oldest = oldest or newest
    return str(newest) if oldest == newest else f"{oldest} to {newest}"
