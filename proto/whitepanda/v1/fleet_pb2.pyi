from whitepanda.v1 import agent_pb2 as _agent_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetFleetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FleetStatus(_message.Message):
    __slots__ = ("central_version", "protocol_version", "started_unix_ns", "connected_hosts", "accepted_batches", "accepted_rows", "duplicate_batches", "rejected", "rejected_batches", "journal_batches", "lake_segments", "lake_rows", "coefficient_version", "coefficient_created_unix_ns", "last_build_error", "days_left_out", "rows_left_out", "accepted_events", "rejected_events", "refused_streams")
    CENTRAL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BATCHES_FIELD_NUMBER: _ClassVar[int]
    LAKE_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    LAKE_ROWS_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_CREATED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_BUILD_ERROR_FIELD_NUMBER: _ClassVar[int]
    DAYS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    ROWS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_STREAMS_FIELD_NUMBER: _ClassVar[int]
    central_version: str
    protocol_version: int
    started_unix_ns: int
    connected_hosts: int
    accepted_batches: int
    accepted_rows: int
    duplicate_batches: int
    rejected: _containers.RepeatedCompositeFieldContainer[_agent_pb2.RejectedRows]
    rejected_batches: _containers.RepeatedCompositeFieldContainer[_agent_pb2.RejectedRows]
    journal_batches: int
    lake_segments: int
    lake_rows: int
    coefficient_version: int
    coefficient_created_unix_ns: int
    last_build_error: str
    days_left_out: int
    rows_left_out: int
    accepted_events: int
    rejected_events: _containers.RepeatedCompositeFieldContainer[_agent_pb2.RejectedRows]
    refused_streams: _containers.RepeatedCompositeFieldContainer[_agent_pb2.RejectedRows]
    def __init__(self, central_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., started_unix_ns: _Optional[int] = ..., connected_hosts: _Optional[int] = ..., accepted_batches: _Optional[int] = ..., accepted_rows: _Optional[int] = ..., duplicate_batches: _Optional[int] = ..., rejected: _Optional[_Iterable[_Union[_agent_pb2.RejectedRows, _Mapping]]] = ..., rejected_batches: _Optional[_Iterable[_Union[_agent_pb2.RejectedRows, _Mapping]]] = ..., journal_batches: _Optional[int] = ..., lake_segments: _Optional[int] = ..., lake_rows: _Optional[int] = ..., coefficient_version: _Optional[int] = ..., coefficient_created_unix_ns: _Optional[int] = ..., last_build_error: _Optional[str] = ..., days_left_out: _Optional[int] = ..., rows_left_out: _Optional[int] = ..., accepted_events: _Optional[int] = ..., rejected_events: _Optional[_Iterable[_Union[_agent_pb2.RejectedRows, _Mapping]]] = ..., refused_streams: _Optional[_Iterable[_Union[_agent_pb2.RejectedRows, _Mapping]]] = ...) -> None: ...

class ListHostsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class HostSummary(_message.Message):
    __slots__ = ("host", "platform", "agent_version", "protocol_version", "connected", "last_seen_unix_ns", "accepted_rows", "spooled_batches", "dropped_batches", "coefficient_version", "jobs", "clock_offset_ns")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_NS_FIELD_NUMBER: _ClassVar[int]
    host: str
    platform: str
    agent_version: str
    protocol_version: int
    connected: bool
    last_seen_unix_ns: int
    accepted_rows: int
    spooled_batches: int
    dropped_batches: int
    coefficient_version: int
    jobs: _containers.RepeatedScalarFieldContainer[str]
    clock_offset_ns: int
    def __init__(self, host: _Optional[str] = ..., platform: _Optional[str] = ..., agent_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., connected: _Optional[bool] = ..., last_seen_unix_ns: _Optional[int] = ..., accepted_rows: _Optional[int] = ..., spooled_batches: _Optional[int] = ..., dropped_batches: _Optional[int] = ..., coefficient_version: _Optional[int] = ..., jobs: _Optional[_Iterable[str]] = ..., clock_offset_ns: _Optional[int] = ...) -> None: ...

class ListHostsResponse(_message.Message):
    __slots__ = ("hosts", "next_page_token")
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedCompositeFieldContainer[HostSummary]
    next_page_token: str
    def __init__(self, hosts: _Optional[_Iterable[_Union[HostSummary, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListJobStatisticsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "job")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    job: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class ListJobStatisticsResponse(_message.Message):
    __slots__ = ("version", "statistics", "next_page_token")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    statistics: _containers.RepeatedCompositeFieldContainer[_agent_pb2.JobStatistics]
    next_page_token: str
    def __init__(self, version: _Optional[int] = ..., statistics: _Optional[_Iterable[_Union[_agent_pb2.JobStatistics, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListCoefficientsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "job")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    job: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class ListCoefficientsResponse(_message.Message):
    __slots__ = ("version", "coefficients", "next_page_token")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    coefficients: _containers.RepeatedCompositeFieldContainer[_agent_pb2.Coefficient]
    next_page_token: str
    def __init__(self, version: _Optional[int] = ..., coefficients: _Optional[_Iterable[_Union[_agent_pb2.Coefficient, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "host", "vm", "behaviour", "since_unix_ns", "until_unix_ns")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VM_FIELD_NUMBER: _ClassVar[int]
    BEHAVIOUR_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    host: str
    vm: str
    behaviour: _agent_pb2.Behaviour
    since_unix_ns: int
    until_unix_ns: int
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., host: _Optional[str] = ..., vm: _Optional[str] = ..., behaviour: _Optional[_Union[_agent_pb2.Behaviour, str]] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ...) -> None: ...

class FleetEvent(_message.Message):
    __slots__ = ("host", "received_unix_ns", "event")
    HOST_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    host: str
    received_unix_ns: int
    event: _agent_pb2.VmEvent
    def __init__(self, host: _Optional[str] = ..., received_unix_ns: _Optional[int] = ..., event: _Optional[_Union[_agent_pb2.VmEvent, _Mapping]] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("events", "next_page_token")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[FleetEvent]
    next_page_token: str
    def __init__(self, events: _Optional[_Iterable[_Union[FleetEvent, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
