from whitepanda.v1 import agent_pb2 as _agent_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AuditAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIT_ACTION_UNSPECIFIED: _ClassVar[AuditAction]
    AUDIT_ACTION_ACKNOWLEDGE: _ClassVar[AuditAction]
    AUDIT_ACTION_NOTE: _ClassVar[AuditAction]
    AUDIT_ACTION_SILENCE: _ClassVar[AuditAction]
    AUDIT_ACTION_END_SILENCE: _ClassVar[AuditAction]

class ChangeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_KIND_UNSPECIFIED: _ClassVar[ChangeKind]
    CHANGE_KIND_VM_STARTED: _ClassVar[ChangeKind]
    CHANGE_KIND_VM_GONE: _ClassVar[ChangeKind]
    CHANGE_KIND_VM_MIGRATED: _ClassVar[ChangeKind]
    CHANGE_KIND_LIMIT_SET: _ClassVar[ChangeKind]
    CHANGE_KIND_AGENT_RESTARTED: _ClassVar[ChangeKind]
    CHANGE_KIND_AGENT_UPGRADED: _ClassVar[ChangeKind]
    CHANGE_KIND_HOST_RESTARTED: _ClassVar[ChangeKind]
    CHANGE_KIND_ACKNOWLEDGED: _ClassVar[ChangeKind]
    CHANGE_KIND_NOTED: _ClassVar[ChangeKind]
    CHANGE_KIND_SILENCED: _ClassVar[ChangeKind]
    CHANGE_KIND_SILENCE_ENDED: _ClassVar[ChangeKind]
    CHANGE_KIND_REMEDY_BEGUN: _ClassVar[ChangeKind]
    CHANGE_KIND_REMEDY_ENDED: _ClassVar[ChangeKind]
    CHANGE_KIND_CLOCK_SET: _ClassVar[ChangeKind]

class FleetVmOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FLEET_VM_ORDER_UNSPECIFIED: _ClassVar[FleetVmOrder]
    FLEET_VM_ORDER_NAME: _ClassVar[FleetVmOrder]
    FLEET_VM_ORDER_PROJECT: _ClassVar[FleetVmOrder]
    FLEET_VM_ORDER_JOB: _ClassVar[FleetVmOrder]
    FLEET_VM_ORDER_HOST: _ClassVar[FleetVmOrder]
    FLEET_VM_ORDER_PLATFORM: _ClassVar[FleetVmOrder]
    FLEET_VM_ORDER_BEHAVIOUR: _ClassVar[FleetVmOrder]
    FLEET_VM_ORDER_SLOW_DOWN: _ClassVar[FleetVmOrder]
    FLEET_VM_ORDER_CPI: _ClassVar[FleetVmOrder]
    FLEET_VM_ORDER_CPU: _ClassVar[FleetVmOrder]
    FLEET_VM_ORDER_LAST: _ClassVar[FleetVmOrder]

class GroupBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_BY_UNSPECIFIED: _ClassVar[GroupBy]
    GROUP_BY_VM: _ClassVar[GroupBy]
    GROUP_BY_HOST: _ClassVar[GroupBy]
    GROUP_BY_JOB: _ClassVar[GroupBy]
    GROUP_BY_PROJECT: _ClassVar[GroupBy]

class TopBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOP_BY_UNSPECIFIED: _ClassVar[TopBy]
    TOP_BY_MEAN: _ClassVar[TopBy]
    TOP_BY_MAX: _ClassVar[TopBy]
AUDIT_ACTION_UNSPECIFIED: AuditAction
AUDIT_ACTION_ACKNOWLEDGE: AuditAction
AUDIT_ACTION_NOTE: AuditAction
AUDIT_ACTION_SILENCE: AuditAction
AUDIT_ACTION_END_SILENCE: AuditAction
CHANGE_KIND_UNSPECIFIED: ChangeKind
CHANGE_KIND_VM_STARTED: ChangeKind
CHANGE_KIND_VM_GONE: ChangeKind
CHANGE_KIND_VM_MIGRATED: ChangeKind
CHANGE_KIND_LIMIT_SET: ChangeKind
CHANGE_KIND_AGENT_RESTARTED: ChangeKind
CHANGE_KIND_AGENT_UPGRADED: ChangeKind
CHANGE_KIND_HOST_RESTARTED: ChangeKind
CHANGE_KIND_ACKNOWLEDGED: ChangeKind
CHANGE_KIND_NOTED: ChangeKind
CHANGE_KIND_SILENCED: ChangeKind
CHANGE_KIND_SILENCE_ENDED: ChangeKind
CHANGE_KIND_REMEDY_BEGUN: ChangeKind
CHANGE_KIND_REMEDY_ENDED: ChangeKind
CHANGE_KIND_CLOCK_SET: ChangeKind
FLEET_VM_ORDER_UNSPECIFIED: FleetVmOrder
FLEET_VM_ORDER_NAME: FleetVmOrder
FLEET_VM_ORDER_PROJECT: FleetVmOrder
FLEET_VM_ORDER_JOB: FleetVmOrder
FLEET_VM_ORDER_HOST: FleetVmOrder
FLEET_VM_ORDER_PLATFORM: FleetVmOrder
FLEET_VM_ORDER_BEHAVIOUR: FleetVmOrder
FLEET_VM_ORDER_SLOW_DOWN: FleetVmOrder
FLEET_VM_ORDER_CPI: FleetVmOrder
FLEET_VM_ORDER_CPU: FleetVmOrder
FLEET_VM_ORDER_LAST: FleetVmOrder
GROUP_BY_UNSPECIFIED: GroupBy
GROUP_BY_VM: GroupBy
GROUP_BY_HOST: GroupBy
GROUP_BY_JOB: GroupBy
GROUP_BY_PROJECT: GroupBy
TOP_BY_UNSPECIFIED: TopBy
TOP_BY_MEAN: TopBy
TOP_BY_MAX: TopBy

class GetFleetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FleetStatus(_message.Message):
    __slots__ = ("central_version", "protocol_version", "started_unix_ns", "connected_hosts", "accepted_batches", "accepted_rows", "duplicate_batches", "rejected", "rejected_batches", "journal_batches", "lake_segments", "lake_rows", "coefficient_version", "coefficient_created_unix_ns", "last_build_error", "days_left_out", "rows_left_out", "accepted_events", "rejected_events", "refused_streams", "last_commit_error", "last_roll_error", "last_incidents_error", "acknowledgements", "damaged_files", "known_hosts", "open_incidents", "webhooks", "certificate_expiry_unix_ns", "revoked_certificates", "last_revocation_error", "over_quota", "paced_hosts", "silenced_incidents", "acknowledged_incidents", "quiet_victims", "machines_left_out", "rejected_values", "silenced_vms", "silenced_hosts")
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
    LAST_COMMIT_ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_ROLL_ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_INCIDENTS_ERROR_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENTS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FILES_FIELD_NUMBER: _ClassVar[int]
    KNOWN_HOSTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    WEBHOOKS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_EXPIRY_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    REVOKED_CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    LAST_REVOCATION_ERROR_FIELD_NUMBER: _ClassVar[int]
    OVER_QUOTA_FIELD_NUMBER: _ClassVar[int]
    PACED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    SILENCED_INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    QUIET_VICTIMS_FIELD_NUMBER: _ClassVar[int]
    MACHINES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    REJECTED_VALUES_FIELD_NUMBER: _ClassVar[int]
    SILENCED_VMS_FIELD_NUMBER: _ClassVar[int]
    SILENCED_HOSTS_FIELD_NUMBER: _ClassVar[int]
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
    last_commit_error: str
    last_roll_error: str
    last_incidents_error: str
    acknowledgements: AcknowledgementTimes
    damaged_files: int
    known_hosts: int
    open_incidents: int
    webhooks: _containers.RepeatedCompositeFieldContainer[WebhookReceiver]
    certificate_expiry_unix_ns: int
    revoked_certificates: int
    last_revocation_error: str
    over_quota: int
    paced_hosts: int
    silenced_incidents: int
    acknowledged_incidents: int
    quiet_victims: _containers.RepeatedScalarFieldContainer[str]
    machines_left_out: _containers.RepeatedScalarFieldContainer[str]
    rejected_values: _containers.RepeatedCompositeFieldContainer[_agent_pb2.RejectedRows]
    silenced_vms: _containers.RepeatedScalarFieldContainer[str]
    silenced_hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, central_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., started_unix_ns: _Optional[int] = ..., connected_hosts: _Optional[int] = ..., accepted_batches: _Optional[int] = ..., accepted_rows: _Optional[int] = ..., duplicate_batches: _Optional[int] = ..., rejected: _Optional[_Iterable[_Union[_agent_pb2.RejectedRows, _Mapping]]] = ..., rejected_batches: _Optional[_Iterable[_Union[_agent_pb2.RejectedRows, _Mapping]]] = ..., journal_batches: _Optional[int] = ..., lake_segments: _Optional[int] = ..., lake_rows: _Optional[int] = ..., coefficient_version: _Optional[int] = ..., coefficient_created_unix_ns: _Optional[int] = ..., last_build_error: _Optional[str] = ..., days_left_out: _Optional[int] = ..., rows_left_out: _Optional[int] = ..., accepted_events: _Optional[int] = ..., rejected_events: _Optional[_Iterable[_Union[_agent_pb2.RejectedRows, _Mapping]]] = ..., refused_streams: _Optional[_Iterable[_Union[_agent_pb2.RejectedRows, _Mapping]]] = ..., last_commit_error: _Optional[str] = ..., last_roll_error: _Optional[str] = ..., last_incidents_error: _Optional[str] = ..., acknowledgements: _Optional[_Union[AcknowledgementTimes, _Mapping]] = ..., damaged_files: _Optional[int] = ..., known_hosts: _Optional[int] = ..., open_incidents: _Optional[int] = ..., webhooks: _Optional[_Iterable[_Union[WebhookReceiver, _Mapping]]] = ..., certificate_expiry_unix_ns: _Optional[int] = ..., revoked_certificates: _Optional[int] = ..., last_revocation_error: _Optional[str] = ..., over_quota: _Optional[int] = ..., paced_hosts: _Optional[int] = ..., silenced_incidents: _Optional[int] = ..., acknowledged_incidents: _Optional[int] = ..., quiet_victims: _Optional[_Iterable[str]] = ..., machines_left_out: _Optional[_Iterable[str]] = ..., rejected_values: _Optional[_Iterable[_Union[_agent_pb2.RejectedRows, _Mapping]]] = ..., silenced_vms: _Optional[_Iterable[str]] = ..., silenced_hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class WebhookReceiver(_message.Message):
    __slots__ = ("receiver", "active", "delivered", "failed_attempts", "dropped", "waiting", "oldest_waiting_unix_ns", "last_error")
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    FAILED_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAITING_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    receiver: str
    active: bool
    delivered: int
    failed_attempts: int
    dropped: _containers.RepeatedCompositeFieldContainer[_agent_pb2.RejectedRows]
    waiting: int
    oldest_waiting_unix_ns: int
    last_error: str
    def __init__(self, receiver: _Optional[str] = ..., active: _Optional[bool] = ..., delivered: _Optional[int] = ..., failed_attempts: _Optional[int] = ..., dropped: _Optional[_Iterable[_Union[_agent_pb2.RejectedRows, _Mapping]]] = ..., waiting: _Optional[int] = ..., oldest_waiting_unix_ns: _Optional[int] = ..., last_error: _Optional[str] = ...) -> None: ...

class AcknowledgementTimes(_message.Message):
    __slots__ = ("bound_s", "batches", "sum_s")
    BOUND_S_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    SUM_S_FIELD_NUMBER: _ClassVar[int]
    bound_s: _containers.RepeatedScalarFieldContainer[float]
    batches: _containers.RepeatedScalarFieldContainer[int]
    sum_s: float
    def __init__(self, bound_s: _Optional[_Iterable[float]] = ..., batches: _Optional[_Iterable[int]] = ..., sum_s: _Optional[float] = ...) -> None: ...

class ListHostsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "project")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    project: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., project: _Optional[str] = ...) -> None: ...

class HostSummary(_message.Message):
    __slots__ = ("host", "platform", "agent_version", "protocol_version", "connected", "last_seen_unix_ns", "accepted_rows", "spooled_batches", "dropped_batches", "coefficient_version", "jobs", "clock_offset_ns", "importer", "over_quota", "min_batch_interval_ms")
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
    IMPORTER_FIELD_NUMBER: _ClassVar[int]
    OVER_QUOTA_FIELD_NUMBER: _ClassVar[int]
    MIN_BATCH_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
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
    importer: bool
    over_quota: _containers.RepeatedCompositeFieldContainer[_agent_pb2.RejectedRows]
    min_batch_interval_ms: int
    def __init__(self, host: _Optional[str] = ..., platform: _Optional[str] = ..., agent_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., connected: _Optional[bool] = ..., last_seen_unix_ns: _Optional[int] = ..., accepted_rows: _Optional[int] = ..., spooled_batches: _Optional[int] = ..., dropped_batches: _Optional[int] = ..., coefficient_version: _Optional[int] = ..., jobs: _Optional[_Iterable[str]] = ..., clock_offset_ns: _Optional[int] = ..., importer: _Optional[bool] = ..., over_quota: _Optional[_Iterable[_Union[_agent_pb2.RejectedRows, _Mapping]]] = ..., min_batch_interval_ms: _Optional[int] = ...) -> None: ...

class ListHostsResponse(_message.Message):
    __slots__ = ("hosts", "next_page_token")
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedCompositeFieldContainer[HostSummary]
    next_page_token: str
    def __init__(self, hosts: _Optional[_Iterable[_Union[HostSummary, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListJobStatisticsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "job", "project")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    job: str
    project: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., job: _Optional[str] = ..., project: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("page_size", "page_token", "host", "vm", "behaviour", "since_unix_ns", "until_unix_ns", "project")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VM_FIELD_NUMBER: _ClassVar[int]
    BEHAVIOUR_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    host: str
    vm: str
    behaviour: _agent_pb2.Behaviour
    since_unix_ns: int
    until_unix_ns: int
    project: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., host: _Optional[str] = ..., vm: _Optional[str] = ..., behaviour: _Optional[_Union[_agent_pb2.Behaviour, str]] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., project: _Optional[str] = ...) -> None: ...

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

class ListIncidentsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "host", "suspect_job", "victim_job", "vm", "since_unix_ns", "until_unix_ns", "open_only", "project")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_JOB_FIELD_NUMBER: _ClassVar[int]
    VICTIM_JOB_FIELD_NUMBER: _ClassVar[int]
    VM_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    OPEN_ONLY_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    host: str
    suspect_job: str
    victim_job: str
    vm: str
    since_unix_ns: int
    until_unix_ns: int
    open_only: bool
    project: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., host: _Optional[str] = ..., suspect_job: _Optional[str] = ..., victim_job: _Optional[str] = ..., vm: _Optional[str] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., open_only: _Optional[bool] = ..., project: _Optional[str] = ...) -> None: ...

class Incident(_message.Message):
    __slots__ = ("id", "host", "suspect_job", "first_unix_ns", "last_unix_ns", "reports", "peak_mn_cpi", "peak_threshold", "victims", "suspects", "recommendations", "open", "found_by", "suspect", "victims_now", "slowest_now", "acknowledged_by", "acknowledged_unix_ns", "acknowledgement", "silenced_by")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_JOB_FIELD_NUMBER: _ClassVar[int]
    FIRST_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    PEAK_MN_CPI_FIELD_NUMBER: _ClassVar[int]
    PEAK_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    VICTIMS_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDATIONS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    FOUND_BY_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    VICTIMS_NOW_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_NOW_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_BY_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENT_FIELD_NUMBER: _ClassVar[int]
    SILENCED_BY_FIELD_NUMBER: _ClassVar[int]
    id: int
    host: str
    suspect_job: str
    first_unix_ns: int
    last_unix_ns: int
    reports: int
    peak_mn_cpi: float
    peak_threshold: float
    victims: _containers.RepeatedCompositeFieldContainer[IncidentVm]
    suspects: _containers.RepeatedCompositeFieldContainer[IncidentVm]
    recommendations: _containers.RepeatedCompositeFieldContainer[_agent_pb2.Recommendation]
    open: bool
    found_by: _containers.RepeatedScalarFieldContainer[_agent_pb2.Analysis]
    suspect: IncidentVm
    victims_now: int
    slowest_now: IncidentVm
    acknowledged_by: str
    acknowledged_unix_ns: int
    acknowledgement: str
    silenced_by: int
    def __init__(self, id: _Optional[int] = ..., host: _Optional[str] = ..., suspect_job: _Optional[str] = ..., first_unix_ns: _Optional[int] = ..., last_unix_ns: _Optional[int] = ..., reports: _Optional[int] = ..., peak_mn_cpi: _Optional[float] = ..., peak_threshold: _Optional[float] = ..., victims: _Optional[_Iterable[_Union[IncidentVm, _Mapping]]] = ..., suspects: _Optional[_Iterable[_Union[IncidentVm, _Mapping]]] = ..., recommendations: _Optional[_Iterable[_Union[_agent_pb2.Recommendation, _Mapping]]] = ..., open: _Optional[bool] = ..., found_by: _Optional[_Iterable[_Union[_agent_pb2.Analysis, str]]] = ..., suspect: _Optional[_Union[IncidentVm, _Mapping]] = ..., victims_now: _Optional[int] = ..., slowest_now: _Optional[_Union[IncidentVm, _Mapping]] = ..., acknowledged_by: _Optional[str] = ..., acknowledged_unix_ns: _Optional[int] = ..., acknowledgement: _Optional[str] = ..., silenced_by: _Optional[int] = ...) -> None: ...

class IncidentVm(_message.Message):
    __slots__ = ("vm", "name", "job", "peak", "reports", "slow_down", "first_reports", "project", "first_unix_ns")
    VM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PEAK_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    SLOW_DOWN_FIELD_NUMBER: _ClassVar[int]
    FIRST_REPORTS_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    FIRST_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    vm: str
    name: str
    job: str
    peak: float
    reports: int
    slow_down: _agent_pb2.Degradation
    first_reports: int
    project: str
    first_unix_ns: int
    def __init__(self, vm: _Optional[str] = ..., name: _Optional[str] = ..., job: _Optional[str] = ..., peak: _Optional[float] = ..., reports: _Optional[int] = ..., slow_down: _Optional[_Union[_agent_pb2.Degradation, _Mapping]] = ..., first_reports: _Optional[int] = ..., project: _Optional[str] = ..., first_unix_ns: _Optional[int] = ...) -> None: ...

class ListIncidentsResponse(_message.Message):
    __slots__ = ("incidents", "next_page_token")
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    incidents: _containers.RepeatedCompositeFieldContainer[Incident]
    next_page_token: str
    def __init__(self, incidents: _Optional[_Iterable[_Union[Incident, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetIncidentRequest(_message.Message):
    __slots__ = ("id", "project")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    id: int
    project: str
    def __init__(self, id: _Optional[int] = ..., project: _Optional[str] = ...) -> None: ...

class IncidentDetail(_message.Message):
    __slots__ = ("incident", "reports", "recurrence", "notes")
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    RECURRENCE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    incident: Incident
    reports: _containers.RepeatedCompositeFieldContainer[_agent_pb2.Trigger]
    recurrence: SuspectJob
    notes: _containers.RepeatedCompositeFieldContainer[IncidentNote]
    def __init__(self, incident: _Optional[_Union[Incident, _Mapping]] = ..., reports: _Optional[_Iterable[_Union[_agent_pb2.Trigger, _Mapping]]] = ..., recurrence: _Optional[_Union[SuspectJob, _Mapping]] = ..., notes: _Optional[_Iterable[_Union[IncidentNote, _Mapping]]] = ...) -> None: ...

class ListSuspectJobsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "job")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    job: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class SuspectJob(_message.Message):
    __slots__ = ("job", "hosts", "incidents", "first_unix_ns", "last_unix_ns")
    JOB_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    job: str
    hosts: int
    incidents: int
    first_unix_ns: int
    last_unix_ns: int
    def __init__(self, job: _Optional[str] = ..., hosts: _Optional[int] = ..., incidents: _Optional[int] = ..., first_unix_ns: _Optional[int] = ..., last_unix_ns: _Optional[int] = ...) -> None: ...

class ListSuspectJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[SuspectJob]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[SuspectJob, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetVmHistoryRequest(_message.Message):
    __slots__ = ("vm", "since_unix_ns", "until_unix_ns", "max_windows", "project")
    VM_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    MAX_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    vm: str
    since_unix_ns: int
    until_unix_ns: int
    max_windows: int
    project: str
    def __init__(self, vm: _Optional[str] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., max_windows: _Optional[int] = ..., project: _Optional[str] = ...) -> None: ...

class VmHistory(_message.Message):
    __slots__ = ("vm", "windows", "windows_left_out", "events", "incidents", "name")
    VM_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    vm: str
    windows: _containers.RepeatedCompositeFieldContainer[VmWindow]
    windows_left_out: bool
    events: _containers.RepeatedCompositeFieldContainer[FleetEvent]
    incidents: _containers.RepeatedCompositeFieldContainer[Incident]
    name: str
    def __init__(self, vm: _Optional[str] = ..., windows: _Optional[_Iterable[_Union[VmWindow, _Mapping]]] = ..., windows_left_out: _Optional[bool] = ..., events: _Optional[_Iterable[_Union[FleetEvent, _Mapping]]] = ..., incidents: _Optional[_Iterable[_Union[Incident, _Mapping]]] = ..., name: _Optional[str] = ...) -> None: ...

class VmWindow(_message.Message):
    __slots__ = ("host", "start_unix_ns", "duration_ns", "cpi", "cpu_usage_cores")
    HOST_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    CPI_FIELD_NUMBER: _ClassVar[int]
    CPU_USAGE_CORES_FIELD_NUMBER: _ClassVar[int]
    host: str
    start_unix_ns: int
    duration_ns: int
    cpi: float
    cpu_usage_cores: float
    def __init__(self, host: _Optional[str] = ..., start_unix_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ..., cpi: _Optional[float] = ..., cpu_usage_cores: _Optional[float] = ...) -> None: ...

class ListJobLoadingsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "job")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    job: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class JobLoading(_message.Message):
    __slots__ = ("job", "loading", "standard_error", "vms", "windows", "measured_vms")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LOADING_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_VMS_FIELD_NUMBER: _ClassVar[int]
    job: str
    loading: _containers.RepeatedScalarFieldContainer[float]
    standard_error: _containers.RepeatedScalarFieldContainer[float]
    vms: int
    windows: int
    measured_vms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[str] = ..., loading: _Optional[_Iterable[float]] = ..., standard_error: _Optional[_Iterable[float]] = ..., vms: _Optional[int] = ..., windows: _Optional[int] = ..., measured_vms: _Optional[_Iterable[int]] = ...) -> None: ...

class UnmeasuredResource(_message.Message):
    __slots__ = ("resource", "why")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    resource: str
    why: str
    def __init__(self, resource: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class ListJobLoadingsResponse(_message.Message):
    __slots__ = ("resources", "loadings", "since_unix_ns", "until_unix_ns", "next_page_token", "unmeasured")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    LOADINGS_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNMEASURED_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedScalarFieldContainer[str]
    loadings: _containers.RepeatedCompositeFieldContainer[JobLoading]
    since_unix_ns: int
    until_unix_ns: int
    next_page_token: str
    unmeasured: _containers.RepeatedCompositeFieldContainer[UnmeasuredResource]
    def __init__(self, resources: _Optional[_Iterable[str]] = ..., loadings: _Optional[_Iterable[_Union[JobLoading, _Mapping]]] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., next_page_token: _Optional[str] = ..., unmeasured: _Optional[_Iterable[_Union[UnmeasuredResource, _Mapping]]] = ...) -> None: ...

class RankHostsRequest(_message.Message):
    __slots__ = ("job", "loading", "top", "vcpus", "memory_bytes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LOADING_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    VCPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    job: str
    loading: str
    top: int
    vcpus: float
    memory_bytes: int
    def __init__(self, job: _Optional[str] = ..., loading: _Optional[str] = ..., top: _Optional[int] = ..., vcpus: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class HostRanking(_message.Message):
    __slots__ = ("resources", "loading", "hosts", "hosts_in_all", "since_unix_ns", "until_unix_ns", "unmeasured", "vcpus", "memory_bytes")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    LOADING_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_IN_ALL_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNMEASURED_FIELD_NUMBER: _ClassVar[int]
    VCPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedScalarFieldContainer[str]
    loading: _containers.RepeatedScalarFieldContainer[float]
    hosts: _containers.RepeatedCompositeFieldContainer[RankedHost]
    hosts_in_all: int
    since_unix_ns: int
    until_unix_ns: int
    unmeasured: _containers.RepeatedCompositeFieldContainer[UnmeasuredResource]
    vcpus: float
    memory_bytes: int
    def __init__(self, resources: _Optional[_Iterable[str]] = ..., loading: _Optional[_Iterable[float]] = ..., hosts: _Optional[_Iterable[_Union[RankedHost, _Mapping]]] = ..., hosts_in_all: _Optional[int] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., unmeasured: _Optional[_Iterable[_Union[UnmeasuredResource, _Mapping]]] = ..., vcpus: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class RankedHost(_message.Message):
    __slots__ = ("host", "added", "by_resource", "total", "vms", "full", "room_unknown")
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    BY_RESOURCE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    ROOM_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    host: str
    added: float
    by_resource: _containers.RepeatedScalarFieldContainer[float]
    total: _containers.RepeatedScalarFieldContainer[float]
    vms: int
    full: str
    room_unknown: str
    def __init__(self, host: _Optional[str] = ..., added: _Optional[float] = ..., by_resource: _Optional[_Iterable[float]] = ..., total: _Optional[_Iterable[float]] = ..., vms: _Optional[int] = ..., full: _Optional[str] = ..., room_unknown: _Optional[str] = ...) -> None: ...

class PlanObservationRequest(_message.Message):
    __slots__ = ("margin_percent", "t", "metric", "platform", "since_unix_ns", "until_unix_ns", "min_instances", "top", "coverage", "design_effect", "weigh_by")
    MARGIN_PERCENT_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    MIN_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    DESIGN_EFFECT_FIELD_NUMBER: _ClassVar[int]
    WEIGH_BY_FIELD_NUMBER: _ClassVar[int]
    margin_percent: float
    t: float
    metric: str
    platform: str
    since_unix_ns: int
    until_unix_ns: int
    min_instances: int
    top: int
    coverage: float
    design_effect: float
    weigh_by: str
    def __init__(self, margin_percent: _Optional[float] = ..., t: _Optional[float] = ..., metric: _Optional[str] = ..., platform: _Optional[str] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., min_instances: _Optional[int] = ..., top: _Optional[int] = ..., coverage: _Optional[float] = ..., design_effect: _Optional[float] = ..., weigh_by: _Optional[str] = ...) -> None: ...

class PlannedJob(_message.Message):
    __slots__ = ("job", "observe", "instances", "weight", "mean", "std", "cost")
    JOB_FIELD_NUMBER: _ClassVar[int]
    OBSERVE_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    job: str
    observe: int
    instances: int
    weight: float
    mean: float
    std: float
    cost: float
    def __init__(self, job: _Optional[str] = ..., observe: _Optional[int] = ..., instances: _Optional[int] = ..., weight: _Optional[float] = ..., mean: _Optional[float] = ..., std: _Optional[float] = ..., cost: _Optional[float] = ...) -> None: ...

class ObservationPlan(_message.Message):
    __slots__ = ("metric", "weighed_by", "jobs", "cost", "is_optimal", "lower_bound", "gap_ratio", "instances", "expected_margin_percent", "metric_mean", "coverage", "jobs_too_few", "jobs_without_spread", "since_unix_ns", "until_unix_ns", "jobs_no_weight")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    WEIGHED_BY_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    IS_OPTIMAL_FIELD_NUMBER: _ClassVar[int]
    LOWER_BOUND_FIELD_NUMBER: _ClassVar[int]
    GAP_RATIO_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MARGIN_PERCENT_FIELD_NUMBER: _ClassVar[int]
    METRIC_MEAN_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    JOBS_TOO_FEW_FIELD_NUMBER: _ClassVar[int]
    JOBS_WITHOUT_SPREAD_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    JOBS_NO_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    metric: str
    weighed_by: str
    jobs: _containers.RepeatedCompositeFieldContainer[PlannedJob]
    cost: float
    is_optimal: bool
    lower_bound: float
    gap_ratio: float
    instances: int
    expected_margin_percent: float
    metric_mean: float
    coverage: float
    jobs_too_few: int
    jobs_without_spread: int
    since_unix_ns: int
    until_unix_ns: int
    jobs_no_weight: int
    def __init__(self, metric: _Optional[str] = ..., weighed_by: _Optional[str] = ..., jobs: _Optional[_Iterable[_Union[PlannedJob, _Mapping]]] = ..., cost: _Optional[float] = ..., is_optimal: _Optional[bool] = ..., lower_bound: _Optional[float] = ..., gap_ratio: _Optional[float] = ..., instances: _Optional[int] = ..., expected_margin_percent: _Optional[float] = ..., metric_mean: _Optional[float] = ..., coverage: _Optional[float] = ..., jobs_too_few: _Optional[int] = ..., jobs_without_spread: _Optional[int] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., jobs_no_weight: _Optional[int] = ...) -> None: ...

class CompareSidesRequest(_message.Message):
    __slots__ = ("current_hosts", "current_platform", "current_since_unix_ns", "current_until_unix_ns", "current_rest", "new_hosts", "new_platform", "new_since_unix_ns", "new_until_unix_ns", "new_rest", "metric", "min_instances", "min_coverage", "top", "confidence", "weigh_by")
    CURRENT_HOSTS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_PLATFORM_FIELD_NUMBER: _ClassVar[int]
    CURRENT_SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_REST_FIELD_NUMBER: _ClassVar[int]
    NEW_HOSTS_FIELD_NUMBER: _ClassVar[int]
    NEW_PLATFORM_FIELD_NUMBER: _ClassVar[int]
    NEW_SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    NEW_UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    NEW_REST_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    MIN_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    MIN_COVERAGE_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    WEIGH_BY_FIELD_NUMBER: _ClassVar[int]
    current_hosts: _containers.RepeatedScalarFieldContainer[str]
    current_platform: str
    current_since_unix_ns: int
    current_until_unix_ns: int
    current_rest: bool
    new_hosts: _containers.RepeatedScalarFieldContainer[str]
    new_platform: str
    new_since_unix_ns: int
    new_until_unix_ns: int
    new_rest: bool
    metric: str
    min_instances: int
    min_coverage: float
    top: int
    confidence: float
    weigh_by: str
    def __init__(self, current_hosts: _Optional[_Iterable[str]] = ..., current_platform: _Optional[str] = ..., current_since_unix_ns: _Optional[int] = ..., current_until_unix_ns: _Optional[int] = ..., current_rest: _Optional[bool] = ..., new_hosts: _Optional[_Iterable[str]] = ..., new_platform: _Optional[str] = ..., new_since_unix_ns: _Optional[int] = ..., new_until_unix_ns: _Optional[int] = ..., new_rest: _Optional[bool] = ..., metric: _Optional[str] = ..., min_instances: _Optional[int] = ..., min_coverage: _Optional[float] = ..., top: _Optional[int] = ..., confidence: _Optional[float] = ..., weigh_by: _Optional[str] = ...) -> None: ...

class Estimate(_message.Message):
    __slots__ = ("value", "low", "high", "standard_error", "degrees_of_freedom")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    DEGREES_OF_FREEDOM_FIELD_NUMBER: _ClassVar[int]
    value: float
    low: float
    high: float
    standard_error: float
    degrees_of_freedom: float
    def __init__(self, value: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., standard_error: _Optional[float] = ..., degrees_of_freedom: _Optional[float] = ...) -> None: ...

class ComparedJob(_message.Message):
    __slots__ = ("job", "weight", "current", "new", "current_instances", "new_instances", "difference_percent", "p", "adjusted_p", "verdict")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    CURRENT_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    NEW_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    P_FIELD_NUMBER: _ClassVar[int]
    ADJUSTED_P_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    job: str
    weight: float
    current: float
    new: float
    current_instances: int
    new_instances: int
    difference_percent: Estimate
    p: float
    adjusted_p: float
    verdict: str
    def __init__(self, job: _Optional[str] = ..., weight: _Optional[float] = ..., current: _Optional[float] = ..., new: _Optional[float] = ..., current_instances: _Optional[int] = ..., new_instances: _Optional[int] = ..., difference_percent: _Optional[_Union[Estimate, _Mapping]] = ..., p: _Optional[float] = ..., adjusted_p: _Optional[float] = ..., verdict: _Optional[str] = ...) -> None: ...

class JobsLeftOut(_message.Message):
    __slots__ = ("reason", "count")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    count: int
    def __init__(self, reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class SideComparison(_message.Message):
    __slots__ = ("metric", "weighed_by", "current", "new", "difference_percent", "p", "independent_percent", "baseline_percent", "coverage", "confidence", "current_machines", "new_machines", "current_instances", "new_instances", "left_out", "jobs", "jobs_in_all", "current_since_unix_ns", "current_until_unix_ns", "new_since_unix_ns", "new_until_unix_ns")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    WEIGHED_BY_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    P_FIELD_NUMBER: _ClassVar[int]
    INDEPENDENT_PERCENT_FIELD_NUMBER: _ClassVar[int]
    BASELINE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    CURRENT_MACHINES_FIELD_NUMBER: _ClassVar[int]
    NEW_MACHINES_FIELD_NUMBER: _ClassVar[int]
    CURRENT_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    NEW_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    JOBS_IN_ALL_FIELD_NUMBER: _ClassVar[int]
    CURRENT_SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    NEW_SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    NEW_UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    metric: str
    weighed_by: str
    current: Estimate
    new: Estimate
    difference_percent: Estimate
    p: float
    independent_percent: Estimate
    baseline_percent: Estimate
    coverage: float
    confidence: float
    current_machines: int
    new_machines: int
    current_instances: int
    new_instances: int
    left_out: _containers.RepeatedCompositeFieldContainer[JobsLeftOut]
    jobs: _containers.RepeatedCompositeFieldContainer[ComparedJob]
    jobs_in_all: int
    current_since_unix_ns: int
    current_until_unix_ns: int
    new_since_unix_ns: int
    new_until_unix_ns: int
    def __init__(self, metric: _Optional[str] = ..., weighed_by: _Optional[str] = ..., current: _Optional[_Union[Estimate, _Mapping]] = ..., new: _Optional[_Union[Estimate, _Mapping]] = ..., difference_percent: _Optional[_Union[Estimate, _Mapping]] = ..., p: _Optional[float] = ..., independent_percent: _Optional[_Union[Estimate, _Mapping]] = ..., baseline_percent: _Optional[_Union[Estimate, _Mapping]] = ..., coverage: _Optional[float] = ..., confidence: _Optional[float] = ..., current_machines: _Optional[int] = ..., new_machines: _Optional[int] = ..., current_instances: _Optional[int] = ..., new_instances: _Optional[int] = ..., left_out: _Optional[_Iterable[_Union[JobsLeftOut, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[ComparedJob, _Mapping]]] = ..., jobs_in_all: _Optional[int] = ..., current_since_unix_ns: _Optional[int] = ..., current_until_unix_ns: _Optional[int] = ..., new_since_unix_ns: _Optional[int] = ..., new_until_unix_ns: _Optional[int] = ...) -> None: ...

class PredictRuntimeRequest(_message.Message):
    __slots__ = ("job", "host", "platform", "beside", "epsilons")
    JOB_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    EPSILONS_FIELD_NUMBER: _ClassVar[int]
    job: str
    host: str
    platform: str
    beside: _containers.RepeatedScalarFieldContainer[str]
    epsilons: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, job: _Optional[str] = ..., host: _Optional[str] = ..., platform: _Optional[str] = ..., beside: _Optional[_Iterable[str]] = ..., epsilons: _Optional[_Iterable[float]] = ...) -> None: ...

class RuntimeBound(_message.Message):
    __slots__ = ("epsilon", "bound_us")
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    BOUND_US_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    bound_us: float
    def __init__(self, epsilon: _Optional[float] = ..., bound_us: _Optional[float] = ...) -> None: ...

class RuntimePrediction(_message.Message):
    __slots__ = ("platform", "beside", "not_known", "predicted_us", "bounds")
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    NOT_KNOWN_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_US_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    platform: str
    beside: _containers.RepeatedScalarFieldContainer[str]
    not_known: _containers.RepeatedScalarFieldContainer[str]
    predicted_us: float
    bounds: _containers.RepeatedCompositeFieldContainer[RuntimeBound]
    def __init__(self, platform: _Optional[str] = ..., beside: _Optional[_Iterable[str]] = ..., not_known: _Optional[_Iterable[str]] = ..., predicted_us: _Optional[float] = ..., bounds: _Optional[_Iterable[_Union[RuntimeBound, _Mapping]]] = ...) -> None: ...

class GetOverviewRequest(_message.Message):
    __slots__ = ("since_unix_ns", "top", "project")
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    since_unix_ns: int
    top: int
    project: str
    def __init__(self, since_unix_ns: _Optional[int] = ..., top: _Optional[int] = ..., project: _Optional[str] = ...) -> None: ...

class Overview(_message.Message):
    __slots__ = ("since_unix_ns", "hosts", "connected_hosts", "late_hosts", "gone_hosts", "is_counted", "vms", "jobs", "open_incidents", "incidents", "contended", "contended_hosts", "open", "antagonists", "last_incidents_error", "suffering", "suffering_in_all")
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    LATE_HOSTS_FIELD_NUMBER: _ClassVar[int]
    GONE_HOSTS_FIELD_NUMBER: _ClassVar[int]
    IS_COUNTED_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    OPEN_INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    CONTENDED_FIELD_NUMBER: _ClassVar[int]
    CONTENDED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ANTAGONISTS_FIELD_NUMBER: _ClassVar[int]
    LAST_INCIDENTS_ERROR_FIELD_NUMBER: _ClassVar[int]
    SUFFERING_FIELD_NUMBER: _ClassVar[int]
    SUFFERING_IN_ALL_FIELD_NUMBER: _ClassVar[int]
    since_unix_ns: int
    hosts: int
    connected_hosts: int
    late_hosts: int
    gone_hosts: int
    is_counted: bool
    vms: int
    jobs: int
    open_incidents: int
    incidents: int
    contended: _containers.RepeatedCompositeFieldContainer[HostContention]
    contended_hosts: int
    open: _containers.RepeatedCompositeFieldContainer[Incident]
    antagonists: _containers.RepeatedCompositeFieldContainer[Antagonist]
    last_incidents_error: str
    suffering: _containers.RepeatedCompositeFieldContainer[SufferingVm]
    suffering_in_all: int
    def __init__(self, since_unix_ns: _Optional[int] = ..., hosts: _Optional[int] = ..., connected_hosts: _Optional[int] = ..., late_hosts: _Optional[int] = ..., gone_hosts: _Optional[int] = ..., is_counted: _Optional[bool] = ..., vms: _Optional[int] = ..., jobs: _Optional[int] = ..., open_incidents: _Optional[int] = ..., incidents: _Optional[int] = ..., contended: _Optional[_Iterable[_Union[HostContention, _Mapping]]] = ..., contended_hosts: _Optional[int] = ..., open: _Optional[_Iterable[_Union[Incident, _Mapping]]] = ..., antagonists: _Optional[_Iterable[_Union[Antagonist, _Mapping]]] = ..., last_incidents_error: _Optional[str] = ..., suffering: _Optional[_Iterable[_Union[SufferingVm, _Mapping]]] = ..., suffering_in_all: _Optional[int] = ...) -> None: ...

class SufferingVm(_message.Message):
    __slots__ = ("vm", "name", "job", "project", "host", "incident", "since_unix_ns", "slow_down", "suspect", "suspect_name", "suspect_job")
    VM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    SLOW_DOWN_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_NAME_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_JOB_FIELD_NUMBER: _ClassVar[int]
    vm: str
    name: str
    job: str
    project: str
    host: str
    incident: int
    since_unix_ns: int
    slow_down: _agent_pb2.Degradation
    suspect: str
    suspect_name: str
    suspect_job: str
    def __init__(self, vm: _Optional[str] = ..., name: _Optional[str] = ..., job: _Optional[str] = ..., project: _Optional[str] = ..., host: _Optional[str] = ..., incident: _Optional[int] = ..., since_unix_ns: _Optional[int] = ..., slow_down: _Optional[_Union[_agent_pb2.Degradation, _Mapping]] = ..., suspect: _Optional[str] = ..., suspect_name: _Optional[str] = ..., suspect_job: _Optional[str] = ...) -> None: ...

class HostContention(_message.Message):
    __slots__ = ("host", "incidents", "open_incidents", "reports", "peak_mn_cpi", "last_unix_ns")
    HOST_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    PEAK_MN_CPI_FIELD_NUMBER: _ClassVar[int]
    LAST_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    host: str
    incidents: int
    open_incidents: int
    reports: int
    peak_mn_cpi: float
    last_unix_ns: int
    def __init__(self, host: _Optional[str] = ..., incidents: _Optional[int] = ..., open_incidents: _Optional[int] = ..., reports: _Optional[int] = ..., peak_mn_cpi: _Optional[float] = ..., last_unix_ns: _Optional[int] = ...) -> None: ...

class Antagonist(_message.Message):
    __slots__ = ("job", "incidents", "hosts", "last_unix_ns", "coefficient", "standard_error")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    LAST_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    job: str
    incidents: int
    hosts: int
    last_unix_ns: int
    coefficient: float
    standard_error: float
    def __init__(self, job: _Optional[str] = ..., incidents: _Optional[int] = ..., hosts: _Optional[int] = ..., last_unix_ns: _Optional[int] = ..., coefficient: _Optional[float] = ..., standard_error: _Optional[float] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job", "bins", "top", "project")
    JOB_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    job: str
    bins: int
    top: int
    project: str
    def __init__(self, job: _Optional[str] = ..., bins: _Optional[int] = ..., top: _Optional[int] = ..., project: _Optional[str] = ...) -> None: ...

class JobDetail(_message.Message):
    __slots__ = ("job", "statistics", "coefficient", "history", "distributions", "hosts", "hosts_in_all", "vms", "since_unix_ns", "until_unix_ns", "recurrence")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_IN_ALL_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    RECURRENCE_FIELD_NUMBER: _ClassVar[int]
    job: str
    statistics: _containers.RepeatedCompositeFieldContainer[_agent_pb2.JobStatistics]
    coefficient: _agent_pb2.Coefficient
    history: _containers.RepeatedCompositeFieldContainer[CoefficientAt]
    distributions: _containers.RepeatedCompositeFieldContainer[CpiDistribution]
    hosts: _containers.RepeatedCompositeFieldContainer[JobHost]
    hosts_in_all: int
    vms: int
    since_unix_ns: int
    until_unix_ns: int
    recurrence: SuspectJob
    def __init__(self, job: _Optional[str] = ..., statistics: _Optional[_Iterable[_Union[_agent_pb2.JobStatistics, _Mapping]]] = ..., coefficient: _Optional[_Union[_agent_pb2.Coefficient, _Mapping]] = ..., history: _Optional[_Iterable[_Union[CoefficientAt, _Mapping]]] = ..., distributions: _Optional[_Iterable[_Union[CpiDistribution, _Mapping]]] = ..., hosts: _Optional[_Iterable[_Union[JobHost, _Mapping]]] = ..., hosts_in_all: _Optional[int] = ..., vms: _Optional[int] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., recurrence: _Optional[_Union[SuspectJob, _Mapping]] = ...) -> None: ...

class CoefficientAt(_message.Message):
    __slots__ = ("version", "created_unix_ns", "value", "standard_error", "samples")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    version: int
    created_unix_ns: int
    value: float
    standard_error: float
    samples: int
    def __init__(self, version: _Optional[int] = ..., created_unix_ns: _Optional[int] = ..., value: _Optional[float] = ..., standard_error: _Optional[float] = ..., samples: _Optional[int] = ...) -> None: ...

class CpiDistribution(_message.Message):
    __slots__ = ("platform", "low_cpi", "high_cpi", "vms", "vms_without_cpi")
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    LOW_CPI_FIELD_NUMBER: _ClassVar[int]
    HIGH_CPI_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    VMS_WITHOUT_CPI_FIELD_NUMBER: _ClassVar[int]
    platform: str
    low_cpi: float
    high_cpi: float
    vms: _containers.RepeatedScalarFieldContainer[int]
    vms_without_cpi: int
    def __init__(self, platform: _Optional[str] = ..., low_cpi: _Optional[float] = ..., high_cpi: _Optional[float] = ..., vms: _Optional[_Iterable[int]] = ..., vms_without_cpi: _Optional[int] = ...) -> None: ...

class JobHost(_message.Message):
    __slots__ = ("host", "platform", "vms", "mean_cpi", "cpu_usage_cores")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    MEAN_CPI_FIELD_NUMBER: _ClassVar[int]
    CPU_USAGE_CORES_FIELD_NUMBER: _ClassVar[int]
    host: str
    platform: str
    vms: int
    mean_cpi: float
    cpu_usage_cores: float
    def __init__(self, host: _Optional[str] = ..., platform: _Optional[str] = ..., vms: _Optional[int] = ..., mean_cpi: _Optional[float] = ..., cpu_usage_cores: _Optional[float] = ...) -> None: ...

class GetHostTimelineRequest(_message.Message):
    __slots__ = ("host", "since_unix_ns", "until_unix_ns", "points", "top", "project")
    HOST_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    host: str
    since_unix_ns: int
    until_unix_ns: int
    points: int
    top: int
    project: str
    def __init__(self, host: _Optional[str] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., points: _Optional[int] = ..., top: _Optional[int] = ..., project: _Optional[str] = ...) -> None: ...

class HostTimeline(_message.Message):
    __slots__ = ("host", "summary", "since_unix_ns", "until_unix_ns", "step_ns", "vms", "vms_in_all", "incidents")
    HOST_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    STEP_NS_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    VMS_IN_ALL_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    host: str
    summary: HostSummary
    since_unix_ns: int
    until_unix_ns: int
    step_ns: int
    vms: _containers.RepeatedCompositeFieldContainer[VmTimeline]
    vms_in_all: int
    incidents: _containers.RepeatedCompositeFieldContainer[Incident]
    def __init__(self, host: _Optional[str] = ..., summary: _Optional[_Union[HostSummary, _Mapping]] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., step_ns: _Optional[int] = ..., vms: _Optional[_Iterable[_Union[VmTimeline, _Mapping]]] = ..., vms_in_all: _Optional[int] = ..., incidents: _Optional[_Iterable[_Union[Incident, _Mapping]]] = ...) -> None: ...

class VmTimeline(_message.Message):
    __slots__ = ("vm", "job", "platform", "latency_sensitive", "mean_cpi", "mean_cpu_usage_cores", "cpi", "cpu_usage_cores", "job_mean_cpi", "job_std_cpi", "name", "last_event")
    VM_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SENSITIVE_FIELD_NUMBER: _ClassVar[int]
    MEAN_CPI_FIELD_NUMBER: _ClassVar[int]
    MEAN_CPU_USAGE_CORES_FIELD_NUMBER: _ClassVar[int]
    CPI_FIELD_NUMBER: _ClassVar[int]
    CPU_USAGE_CORES_FIELD_NUMBER: _ClassVar[int]
    JOB_MEAN_CPI_FIELD_NUMBER: _ClassVar[int]
    JOB_STD_CPI_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    vm: str
    job: str
    platform: str
    latency_sensitive: bool
    mean_cpi: float
    mean_cpu_usage_cores: float
    cpi: _containers.RepeatedScalarFieldContainer[float]
    cpu_usage_cores: _containers.RepeatedScalarFieldContainer[float]
    job_mean_cpi: float
    job_std_cpi: float
    name: str
    last_event: _agent_pb2.VmEvent
    def __init__(self, vm: _Optional[str] = ..., job: _Optional[str] = ..., platform: _Optional[str] = ..., latency_sensitive: _Optional[bool] = ..., mean_cpi: _Optional[float] = ..., mean_cpu_usage_cores: _Optional[float] = ..., cpi: _Optional[_Iterable[float]] = ..., cpu_usage_cores: _Optional[_Iterable[float]] = ..., job_mean_cpi: _Optional[float] = ..., job_std_cpi: _Optional[float] = ..., name: _Optional[str] = ..., last_event: _Optional[_Union[_agent_pb2.VmEvent, _Mapping]] = ...) -> None: ...

class GetDataHealthRequest(_message.Message):
    __slots__ = ("top",)
    TOP_FIELD_NUMBER: _ClassVar[int]
    top: int
    def __init__(self, top: _Optional[int] = ...) -> None: ...

class DataHealth(_message.Message):
    __slots__ = ("days", "last_segment_unix_ns", "late_hosts", "gone_hosts", "silent", "spooled_batches", "dropped_batches", "held_back", "held_back_hosts")
    DAYS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEGMENT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LATE_HOSTS_FIELD_NUMBER: _ClassVar[int]
    GONE_HOSTS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_HOSTS_FIELD_NUMBER: _ClassVar[int]
    days: _containers.RepeatedCompositeFieldContainer[LakeDay]
    last_segment_unix_ns: int
    late_hosts: int
    gone_hosts: int
    silent: _containers.RepeatedCompositeFieldContainer[SilentHost]
    spooled_batches: int
    dropped_batches: int
    held_back: _containers.RepeatedCompositeFieldContainer[HeldBackHost]
    held_back_hosts: int
    def __init__(self, days: _Optional[_Iterable[_Union[LakeDay, _Mapping]]] = ..., last_segment_unix_ns: _Optional[int] = ..., late_hosts: _Optional[int] = ..., gone_hosts: _Optional[int] = ..., silent: _Optional[_Iterable[_Union[SilentHost, _Mapping]]] = ..., spooled_batches: _Optional[int] = ..., dropped_batches: _Optional[int] = ..., held_back: _Optional[_Iterable[_Union[HeldBackHost, _Mapping]]] = ..., held_back_hosts: _Optional[int] = ...) -> None: ...

class HeldBackHost(_message.Message):
    __slots__ = ("host", "over_quota", "min_batch_interval_ms")
    HOST_FIELD_NUMBER: _ClassVar[int]
    OVER_QUOTA_FIELD_NUMBER: _ClassVar[int]
    MIN_BATCH_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    host: str
    over_quota: _containers.RepeatedCompositeFieldContainer[_agent_pb2.RejectedRows]
    min_batch_interval_ms: int
    def __init__(self, host: _Optional[str] = ..., over_quota: _Optional[_Iterable[_Union[_agent_pb2.RejectedRows, _Mapping]]] = ..., min_batch_interval_ms: _Optional[int] = ...) -> None: ...

class LakeDay(_message.Message):
    __slots__ = ("day", "segments", "rows", "size_bytes")
    DAY_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    day: str
    segments: int
    rows: int
    size_bytes: int
    def __init__(self, day: _Optional[str] = ..., segments: _Optional[int] = ..., rows: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class SilentHost(_message.Message):
    __slots__ = ("host", "connected", "last_seen_unix_ns", "spooled_batches", "dropped_batches")
    HOST_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    host: str
    connected: bool
    last_seen_unix_ns: int
    spooled_batches: int
    dropped_batches: int
    def __init__(self, host: _Optional[str] = ..., connected: _Optional[bool] = ..., last_seen_unix_ns: _Optional[int] = ..., spooled_batches: _Optional[int] = ..., dropped_batches: _Optional[int] = ...) -> None: ...

class AcknowledgeIncidentRequest(_message.Message):
    __slots__ = ("id", "reason", "operator")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    id: int
    reason: str
    operator: str
    def __init__(self, id: _Optional[int] = ..., reason: _Optional[str] = ..., operator: _Optional[str] = ...) -> None: ...

class AddIncidentNoteRequest(_message.Message):
    __slots__ = ("id", "text", "operator", "key")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    operator: str
    key: str
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., operator: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class IncidentNote(_message.Message):
    __slots__ = ("unix_ns", "by", "text")
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    unix_ns: int
    by: str
    text: str
    def __init__(self, unix_ns: _Optional[int] = ..., by: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class CreateSilenceRequest(_message.Message):
    __slots__ = ("host", "vm", "job", "project", "start_unix_ns", "end_unix_ns", "reason", "operator", "key")
    HOST_FIELD_NUMBER: _ClassVar[int]
    VM_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    END_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    host: str
    vm: str
    job: str
    project: str
    start_unix_ns: int
    end_unix_ns: int
    reason: str
    operator: str
    key: str
    def __init__(self, host: _Optional[str] = ..., vm: _Optional[str] = ..., job: _Optional[str] = ..., project: _Optional[str] = ..., start_unix_ns: _Optional[int] = ..., end_unix_ns: _Optional[int] = ..., reason: _Optional[str] = ..., operator: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class Silence(_message.Message):
    __slots__ = ("id", "host", "vm", "job", "project", "start_unix_ns", "end_unix_ns", "reason", "by", "created_unix_ns", "ended_by", "in_force", "name")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VM_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    END_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    ENDED_BY_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    id: int
    host: str
    vm: str
    job: str
    project: str
    start_unix_ns: int
    end_unix_ns: int
    reason: str
    by: str
    created_unix_ns: int
    ended_by: str
    in_force: bool
    name: str
    def __init__(self, id: _Optional[int] = ..., host: _Optional[str] = ..., vm: _Optional[str] = ..., job: _Optional[str] = ..., project: _Optional[str] = ..., start_unix_ns: _Optional[int] = ..., end_unix_ns: _Optional[int] = ..., reason: _Optional[str] = ..., by: _Optional[str] = ..., created_unix_ns: _Optional[int] = ..., ended_by: _Optional[str] = ..., in_force: _Optional[bool] = ..., name: _Optional[str] = ...) -> None: ...

class EndSilenceRequest(_message.Message):
    __slots__ = ("id", "operator")
    ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    id: int
    operator: str
    def __init__(self, id: _Optional[int] = ..., operator: _Optional[str] = ...) -> None: ...

class ListSilencesRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "current_only", "project")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CURRENT_ONLY_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    current_only: bool
    project: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., current_only: _Optional[bool] = ..., project: _Optional[str] = ...) -> None: ...

class ListSilencesResponse(_message.Message):
    __slots__ = ("silences", "next_page_token")
    SILENCES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    silences: _containers.RepeatedCompositeFieldContainer[Silence]
    next_page_token: str
    def __init__(self, silences: _Optional[_Iterable[_Union[Silence, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "project")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    project: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., project: _Optional[str] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("id", "unix_ns", "by", "action", "incident", "silence", "text")
    ID_FIELD_NUMBER: _ClassVar[int]
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    id: int
    unix_ns: int
    by: str
    action: AuditAction
    incident: int
    silence: int
    text: str
    def __init__(self, id: _Optional[int] = ..., unix_ns: _Optional[int] = ..., by: _Optional[str] = ..., action: _Optional[_Union[AuditAction, str]] = ..., incident: _Optional[int] = ..., silence: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class ListAuditResponse(_message.Message):
    __slots__ = ("entries", "next_page_token")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    next_page_token: str
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetIncidentTimelineRequest(_message.Message):
    __slots__ = ("id", "project")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    id: int
    project: str
    def __init__(self, id: _Optional[int] = ..., project: _Optional[str] = ...) -> None: ...

class IncidentChange(_message.Message):
    __slots__ = ("unix_ns", "kind", "vm", "name", "text")
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    unix_ns: int
    kind: ChangeKind
    vm: str
    name: str
    text: str
    def __init__(self, unix_ns: _Optional[int] = ..., kind: _Optional[_Union[ChangeKind, str]] = ..., vm: _Optional[str] = ..., name: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class IncidentTimeline(_message.Message):
    __slots__ = ("since_unix_ns", "until_unix_ns", "changes", "changes_left_out", "host")
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    CHANGES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    since_unix_ns: int
    until_unix_ns: int
    changes: _containers.RepeatedCompositeFieldContainer[IncidentChange]
    changes_left_out: bool
    host: str
    def __init__(self, since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[IncidentChange, _Mapping]]] = ..., changes_left_out: _Optional[bool] = ..., host: _Optional[str] = ...) -> None: ...

class ListFleetVmsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "text", "project", "job", "host", "behaviour", "order", "descending")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BEHAVIOUR_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    text: str
    project: str
    job: str
    host: str
    behaviour: _agent_pb2.Behaviour
    order: FleetVmOrder
    descending: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., text: _Optional[str] = ..., project: _Optional[str] = ..., job: _Optional[str] = ..., host: _Optional[str] = ..., behaviour: _Optional[_Union[_agent_pb2.Behaviour, str]] = ..., order: _Optional[_Union[FleetVmOrder, str]] = ..., descending: _Optional[bool] = ...) -> None: ...

class FleetVm(_message.Message):
    __slots__ = ("vm", "name", "project", "job", "host", "platform", "behaviour", "slow_down", "cpi", "cpu_usage_cores", "last_unix_ns", "incident", "since_unix_ns")
    VM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    BEHAVIOUR_FIELD_NUMBER: _ClassVar[int]
    SLOW_DOWN_FIELD_NUMBER: _ClassVar[int]
    CPI_FIELD_NUMBER: _ClassVar[int]
    CPU_USAGE_CORES_FIELD_NUMBER: _ClassVar[int]
    LAST_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    vm: str
    name: str
    project: str
    job: str
    host: str
    platform: str
    behaviour: _agent_pb2.Behaviour
    slow_down: _agent_pb2.Degradation
    cpi: float
    cpu_usage_cores: float
    last_unix_ns: int
    incident: int
    since_unix_ns: int
    def __init__(self, vm: _Optional[str] = ..., name: _Optional[str] = ..., project: _Optional[str] = ..., job: _Optional[str] = ..., host: _Optional[str] = ..., platform: _Optional[str] = ..., behaviour: _Optional[_Union[_agent_pb2.Behaviour, str]] = ..., slow_down: _Optional[_Union[_agent_pb2.Degradation, _Mapping]] = ..., cpi: _Optional[float] = ..., cpu_usage_cores: _Optional[float] = ..., last_unix_ns: _Optional[int] = ..., incident: _Optional[int] = ..., since_unix_ns: _Optional[int] = ...) -> None: ...

class ListFleetVmsResponse(_message.Message):
    __slots__ = ("vms", "vms_in_all", "next_page_token", "until_unix_ns")
    VMS_FIELD_NUMBER: _ClassVar[int]
    VMS_IN_ALL_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    vms: _containers.RepeatedCompositeFieldContainer[FleetVm]
    vms_in_all: int
    next_page_token: str
    until_unix_ns: int
    def __init__(self, vms: _Optional[_Iterable[_Union[FleetVm, _Mapping]]] = ..., vms_in_all: _Optional[int] = ..., next_page_token: _Optional[str] = ..., until_unix_ns: _Optional[int] = ...) -> None: ...

class SearchRequest(_message.Message):
    __slots__ = ("text", "top", "project")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    text: str
    top: int
    project: str
    def __init__(self, text: _Optional[str] = ..., top: _Optional[int] = ..., project: _Optional[str] = ...) -> None: ...

class SearchHit(_message.Message):
    __slots__ = ("kind", "name", "vm", "project", "job", "host", "gone")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VM_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    vm: str
    project: str
    job: str
    host: str
    gone: bool
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., vm: _Optional[str] = ..., project: _Optional[str] = ..., job: _Optional[str] = ..., host: _Optional[str] = ..., gone: _Optional[bool] = ...) -> None: ...

class SearchResponse(_message.Message):
    __slots__ = ("hits",)
    HITS_FIELD_NUMBER: _ClassVar[int]
    hits: _containers.RepeatedCompositeFieldContainer[SearchHit]
    def __init__(self, hits: _Optional[_Iterable[_Union[SearchHit, _Mapping]]] = ...) -> None: ...

class QuerySeriesRequest(_message.Message):
    __slots__ = ("metrics", "vms", "hosts", "jobs", "projects", "since_unix_ns", "until_unix_ns", "points", "page_size", "page_token", "group_by")
    METRICS_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    PROJECTS_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GROUP_BY_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.RepeatedScalarFieldContainer[str]
    vms: _containers.RepeatedScalarFieldContainer[str]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    projects: _containers.RepeatedScalarFieldContainer[str]
    since_unix_ns: int
    until_unix_ns: int
    points: int
    page_size: int
    page_token: str
    group_by: GroupBy
    def __init__(self, metrics: _Optional[_Iterable[str]] = ..., vms: _Optional[_Iterable[str]] = ..., hosts: _Optional[_Iterable[str]] = ..., jobs: _Optional[_Iterable[str]] = ..., projects: _Optional[_Iterable[str]] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., points: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., group_by: _Optional[_Union[GroupBy, str]] = ...) -> None: ...

class QuerySeriesResponse(_message.Message):
    __slots__ = ("since_unix_ns", "until_unix_ns", "step_ns", "slot_ns", "vms", "next_page_token")
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    STEP_NS_FIELD_NUMBER: _ClassVar[int]
    SLOT_NS_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    since_unix_ns: int
    until_unix_ns: int
    step_ns: int
    slot_ns: int
    vms: _containers.RepeatedCompositeFieldContainer[VmSeries]
    next_page_token: str
    def __init__(self, since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., step_ns: _Optional[int] = ..., slot_ns: _Optional[int] = ..., vms: _Optional[_Iterable[_Union[VmSeries, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class VmSeries(_message.Message):
    __slots__ = ("vm", "name", "job", "places", "metrics", "group")
    VM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    vm: str
    name: str
    job: str
    places: _containers.RepeatedCompositeFieldContainer[VmPlace]
    metrics: _containers.RepeatedCompositeFieldContainer[MetricSeries]
    group: str
    def __init__(self, vm: _Optional[str] = ..., name: _Optional[str] = ..., job: _Optional[str] = ..., places: _Optional[_Iterable[_Union[VmPlace, _Mapping]]] = ..., metrics: _Optional[_Iterable[_Union[MetricSeries, _Mapping]]] = ..., group: _Optional[str] = ...) -> None: ...

class VmPlace(_message.Message):
    __slots__ = ("host", "since_unix_ns", "until_unix_ns")
    HOST_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    host: str
    since_unix_ns: int
    until_unix_ns: int
    def __init__(self, host: _Optional[str] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ...) -> None: ...

class MetricSeries(_message.Message):
    __slots__ = ("metric", "unit", "mean", "min", "max", "count", "absences", "joined", "vms")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ABSENCES_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    metric: str
    unit: str
    mean: _containers.RepeatedScalarFieldContainer[float]
    min: _containers.RepeatedScalarFieldContainer[float]
    max: _containers.RepeatedScalarFieldContainer[float]
    count: _containers.RepeatedScalarFieldContainer[int]
    absences: _containers.RepeatedCompositeFieldContainer[Absence]
    joined: str
    vms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, metric: _Optional[str] = ..., unit: _Optional[str] = ..., mean: _Optional[_Iterable[float]] = ..., min: _Optional[_Iterable[float]] = ..., max: _Optional[_Iterable[float]] = ..., count: _Optional[_Iterable[int]] = ..., absences: _Optional[_Iterable[_Union[Absence, _Mapping]]] = ..., joined: _Optional[str] = ..., vms: _Optional[_Iterable[int]] = ...) -> None: ...

class Absence(_message.Message):
    __slots__ = ("since_unix_ns", "until_unix_ns", "reason")
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    since_unix_ns: int
    until_unix_ns: int
    reason: str
    def __init__(self, since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class TopVmsRequest(_message.Message):
    __slots__ = ("metric", "by", "hosts", "jobs", "projects", "since_unix_ns", "until_unix_ns", "top")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    PROJECTS_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    metric: str
    by: TopBy
    hosts: _containers.RepeatedScalarFieldContainer[str]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    projects: _containers.RepeatedScalarFieldContainer[str]
    since_unix_ns: int
    until_unix_ns: int
    top: int
    def __init__(self, metric: _Optional[str] = ..., by: _Optional[_Union[TopBy, str]] = ..., hosts: _Optional[_Iterable[str]] = ..., jobs: _Optional[_Iterable[str]] = ..., projects: _Optional[_Iterable[str]] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., top: _Optional[int] = ...) -> None: ...

class TopVmsResponse(_message.Message):
    __slots__ = ("since_unix_ns", "until_unix_ns", "slot_ns", "unit", "vms")
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    SLOT_NS_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    since_unix_ns: int
    until_unix_ns: int
    slot_ns: int
    unit: str
    vms: _containers.RepeatedCompositeFieldContainer[TopVm]
    def __init__(self, since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., slot_ns: _Optional[int] = ..., unit: _Optional[str] = ..., vms: _Optional[_Iterable[_Union[TopVm, _Mapping]]] = ...) -> None: ...

class TopVm(_message.Message):
    __slots__ = ("vm", "name", "host", "job", "mean", "min", "max", "count")
    VM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    vm: str
    name: str
    host: str
    job: str
    mean: float
    min: float
    max: float
    count: int
    def __init__(self, vm: _Optional[str] = ..., name: _Optional[str] = ..., host: _Optional[str] = ..., job: _Optional[str] = ..., mean: _Optional[float] = ..., min: _Optional[float] = ..., max: _Optional[float] = ..., count: _Optional[int] = ...) -> None: ...

class GetFactsRequest(_message.Message):
    __slots__ = ("vm", "host", "at_unix_ns", "project")
    VM_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    vm: str
    host: str
    at_unix_ns: int
    project: str
    def __init__(self, vm: _Optional[str] = ..., host: _Optional[str] = ..., at_unix_ns: _Optional[int] = ..., project: _Optional[str] = ...) -> None: ...

class VmVersion(_message.Message):
    __slots__ = ("host", "facts", "until_unix_ns")
    HOST_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    host: str
    facts: _agent_pb2.VmFacts
    until_unix_ns: int
    def __init__(self, host: _Optional[str] = ..., facts: _Optional[_Union[_agent_pb2.VmFacts, _Mapping]] = ..., until_unix_ns: _Optional[int] = ...) -> None: ...

class HostVersion(_message.Message):
    __slots__ = ("host", "facts", "until_unix_ns")
    HOST_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    host: str
    facts: _agent_pb2.HostFacts
    until_unix_ns: int
    def __init__(self, host: _Optional[str] = ..., facts: _Optional[_Union[_agent_pb2.HostFacts, _Mapping]] = ..., until_unix_ns: _Optional[int] = ...) -> None: ...

class Facts(_message.Message):
    __slots__ = ("vm", "host", "versions")
    VM_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    vm: VmVersion
    host: HostVersion
    versions: _containers.RepeatedCompositeFieldContainer[VmVersion]
    def __init__(self, vm: _Optional[_Union[VmVersion, _Mapping]] = ..., host: _Optional[_Union[HostVersion, _Mapping]] = ..., versions: _Optional[_Iterable[_Union[VmVersion, _Mapping]]] = ...) -> None: ...

class ListFactsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "host", "project", "at_unix_ns")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    host: str
    project: str
    at_unix_ns: int
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., host: _Optional[str] = ..., project: _Optional[str] = ..., at_unix_ns: _Optional[int] = ...) -> None: ...

class ListFactsResponse(_message.Message):
    __slots__ = ("vms", "next_page_token")
    VMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    vms: _containers.RepeatedCompositeFieldContainer[VmVersion]
    next_page_token: str
    def __init__(self, vms: _Optional[_Iterable[_Union[VmVersion, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
