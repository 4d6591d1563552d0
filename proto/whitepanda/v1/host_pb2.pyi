from whitepanda.v1 import agent_pb2 as _agent_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HostStatus(_message.Message):
    __slots__ = ("host", "agent_version", "platform", "now_unix_ns", "started_unix_ns", "ticks", "missed_ticks", "sources", "uplink", "coefficient_version", "cpu_seconds", "rss_bytes", "window_ms", "host_metrics", "mn_cpi", "history")
    HOST_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    NOW_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    TICKS_FIELD_NUMBER: _ClassVar[int]
    MISSED_TICKS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    UPLINK_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    HOST_METRICS_FIELD_NUMBER: _ClassVar[int]
    MN_CPI_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    host: str
    agent_version: str
    platform: str
    now_unix_ns: int
    started_unix_ns: int
    ticks: int
    missed_ticks: int
    sources: _containers.RepeatedCompositeFieldContainer[SourceStatus]
    uplink: UplinkStatus
    coefficient_version: int
    cpu_seconds: float
    rss_bytes: int
    window_ms: int
    host_metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    mn_cpi: float
    history: HistoryStatus
    def __init__(self, host: _Optional[str] = ..., agent_version: _Optional[str] = ..., platform: _Optional[str] = ..., now_unix_ns: _Optional[int] = ..., started_unix_ns: _Optional[int] = ..., ticks: _Optional[int] = ..., missed_ticks: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[SourceStatus, _Mapping]]] = ..., uplink: _Optional[_Union[UplinkStatus, _Mapping]] = ..., coefficient_version: _Optional[int] = ..., cpu_seconds: _Optional[float] = ..., rss_bytes: _Optional[int] = ..., window_ms: _Optional[int] = ..., host_metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ..., mn_cpi: _Optional[float] = ..., history: _Optional[_Union[HistoryStatus, _Mapping]] = ...) -> None: ...

class HistoryStatus(_message.Message):
    __slots__ = ("state", "detail", "bytes", "max_bytes", "first_unix_ns", "lost_frames")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LOST_FRAMES_FIELD_NUMBER: _ClassVar[int]
    state: str
    detail: str
    bytes: int
    max_bytes: int
    first_unix_ns: int
    lost_frames: int
    def __init__(self, state: _Optional[str] = ..., detail: _Optional[str] = ..., bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., first_unix_ns: _Optional[int] = ..., lost_frames: _Optional[int] = ...) -> None: ...

class SourceStatus(_message.Message):
    __slots__ = ("name", "state", "detail", "age_ns", "duration_ns", "samples", "failures")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    AGE_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    detail: str
    age_ns: int
    duration_ns: int
    samples: int
    failures: int
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., detail: _Optional[str] = ..., age_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ..., samples: _Optional[int] = ..., failures: _Optional[int] = ...) -> None: ...

class UplinkStatus(_message.Message):
    __slots__ = ("state", "address", "spooled_batches", "spooled_bytes", "acknowledged_batches", "dropped_batches", "rejected_rows", "last_error", "acknowledged_windows", "refused_updates", "refused_update_rows", "last_refusal", "min_batch_interval_ms", "rejected_batches")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    REJECTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_UPDATES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_UPDATE_ROWS_FIELD_NUMBER: _ClassVar[int]
    LAST_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    MIN_BATCH_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    state: str
    address: str
    spooled_batches: int
    spooled_bytes: int
    acknowledged_batches: int
    dropped_batches: int
    rejected_rows: int
    last_error: str
    acknowledged_windows: int
    refused_updates: int
    refused_update_rows: int
    last_refusal: str
    min_batch_interval_ms: int
    rejected_batches: int
    def __init__(self, state: _Optional[str] = ..., address: _Optional[str] = ..., spooled_batches: _Optional[int] = ..., spooled_bytes: _Optional[int] = ..., acknowledged_batches: _Optional[int] = ..., dropped_batches: _Optional[int] = ..., rejected_rows: _Optional[int] = ..., last_error: _Optional[str] = ..., acknowledged_windows: _Optional[int] = ..., refused_updates: _Optional[int] = ..., refused_update_rows: _Optional[int] = ..., last_refusal: _Optional[str] = ..., min_batch_interval_ms: _Optional[int] = ..., rejected_batches: _Optional[int] = ...) -> None: ...

class Metric(_message.Message):
    __slots__ = ("name", "value", "reason", "source", "age_ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    AGE_NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    reason: _agent_pb2.Reason
    source: str
    age_ns: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., reason: _Optional[_Union[_agent_pb2.Reason, str]] = ..., source: _Optional[str] = ..., age_ns: _Optional[int] = ...) -> None: ...

class VmSummary(_message.Message):
    __slots__ = ("uuid", "name", "job", "latency_sensitive", "epoch", "state", "vcpus", "metrics", "verdict", "verdict_reason", "degradation", "owner", "quota_cores", "cloud_white", "job_mean_cpi", "decision")
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SENSITIVE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VCPUS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_REASON_FIELD_NUMBER: _ClassVar[int]
    DEGRADATION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    QUOTA_CORES_FIELD_NUMBER: _ClassVar[int]
    CLOUD_WHITE_FIELD_NUMBER: _ClassVar[int]
    JOB_MEAN_CPI_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    name: str
    job: str
    latency_sensitive: bool
    epoch: str
    state: str
    vcpus: int
    metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    verdict: str
    verdict_reason: str
    degradation: float
    owner: str
    quota_cores: float
    cloud_white: CloudWhite
    job_mean_cpi: float
    decision: VmDecision
    def __init__(self, uuid: _Optional[str] = ..., name: _Optional[str] = ..., job: _Optional[str] = ..., latency_sensitive: _Optional[bool] = ..., epoch: _Optional[str] = ..., state: _Optional[str] = ..., vcpus: _Optional[int] = ..., metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ..., verdict: _Optional[str] = ..., verdict_reason: _Optional[str] = ..., degradation: _Optional[float] = ..., owner: _Optional[str] = ..., quota_cores: _Optional[float] = ..., cloud_white: _Optional[_Union[CloudWhite, _Mapping]] = ..., job_mean_cpi: _Optional[float] = ..., decision: _Optional[_Union[VmDecision, _Mapping]] = ...) -> None: ...

class VmDecision(_message.Message):
    __slots__ = ("verdict", "reason", "since_ns", "slow_down", "found_by", "suspects", "suspects_left_out")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_NS_FIELD_NUMBER: _ClassVar[int]
    SLOW_DOWN_FIELD_NUMBER: _ClassVar[int]
    FOUND_BY_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    verdict: _agent_pb2.Behaviour
    reason: str
    since_ns: int
    slow_down: _agent_pb2.Degradation
    found_by: _containers.RepeatedScalarFieldContainer[_agent_pb2.Analysis]
    suspects: _containers.RepeatedCompositeFieldContainer[Suspect]
    suspects_left_out: int
    def __init__(self, verdict: _Optional[_Union[_agent_pb2.Behaviour, str]] = ..., reason: _Optional[str] = ..., since_ns: _Optional[int] = ..., slow_down: _Optional[_Union[_agent_pb2.Degradation, _Mapping]] = ..., found_by: _Optional[_Iterable[_Union[_agent_pb2.Analysis, str]]] = ..., suspects: _Optional[_Iterable[_Union[Suspect, _Mapping]]] = ..., suspects_left_out: _Optional[int] = ...) -> None: ...

class HostDecision(_message.Message):
    __slots__ = ("victims", "affected", "inflicting", "suspect")
    VICTIMS_FIELD_NUMBER: _ClassVar[int]
    AFFECTED_FIELD_NUMBER: _ClassVar[int]
    INFLICTING_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    victims: int
    affected: int
    inflicting: int
    suspect: Suspect
    def __init__(self, victims: _Optional[int] = ..., affected: _Optional[int] = ..., inflicting: _Optional[int] = ..., suspect: _Optional[_Union[Suspect, _Mapping]] = ...) -> None: ...

class CloudWhite(_message.Message):
    __slots__ = ("behaviour", "reason", "since_ns", "degradation", "culprits", "baseline_ticks", "baseline_ready")
    BEHAVIOUR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_NS_FIELD_NUMBER: _ClassVar[int]
    DEGRADATION_FIELD_NUMBER: _ClassVar[int]
    CULPRITS_FIELD_NUMBER: _ClassVar[int]
    BASELINE_TICKS_FIELD_NUMBER: _ClassVar[int]
    BASELINE_READY_FIELD_NUMBER: _ClassVar[int]
    behaviour: _agent_pb2.Behaviour
    reason: str
    since_ns: int
    degradation: _agent_pb2.Degradation
    culprits: _containers.RepeatedScalarFieldContainer[str]
    baseline_ticks: int
    baseline_ready: bool
    def __init__(self, behaviour: _Optional[_Union[_agent_pb2.Behaviour, str]] = ..., reason: _Optional[str] = ..., since_ns: _Optional[int] = ..., degradation: _Optional[_Union[_agent_pb2.Degradation, _Mapping]] = ..., culprits: _Optional[_Iterable[str]] = ..., baseline_ticks: _Optional[int] = ..., baseline_ready: _Optional[bool] = ...) -> None: ...

class ListVmsRequest(_message.Message):
    __slots__ = ("metrics",)
    METRICS_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, metrics: _Optional[_Iterable[str]] = ...) -> None: ...

class ListVmsResponse(_message.Message):
    __slots__ = ("now_unix_ns", "host", "vms", "triggered", "decision")
    NOW_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    TRIGGERED_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    now_unix_ns: int
    host: str
    vms: _containers.RepeatedCompositeFieldContainer[VmSummary]
    triggered: bool
    decision: HostDecision
    def __init__(self, now_unix_ns: _Optional[int] = ..., host: _Optional[str] = ..., vms: _Optional[_Iterable[_Union[VmSummary, _Mapping]]] = ..., triggered: _Optional[bool] = ..., decision: _Optional[_Union[HostDecision, _Mapping]] = ...) -> None: ...

class ExplainVmRequest(_message.Message):
    __slots__ = ("vm",)
    VM_FIELD_NUMBER: _ClassVar[int]
    vm: str
    def __init__(self, vm: _Optional[str] = ...) -> None: ...

class VmExplanation(_message.Message):
    __slots__ = ("vm", "statistics", "cpi", "n_cpi", "victim_threshold_cpi", "mn_cpi", "mn_cpi_threshold", "victim_slots", "coefficient_version", "coefficient_age_ns", "suspects", "history", "triggered", "detector", "evidence", "signals", "events", "recommendations", "victims")
    VM_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    CPI_FIELD_NUMBER: _ClassVar[int]
    N_CPI_FIELD_NUMBER: _ClassVar[int]
    VICTIM_THRESHOLD_CPI_FIELD_NUMBER: _ClassVar[int]
    MN_CPI_FIELD_NUMBER: _ClassVar[int]
    MN_CPI_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    VICTIM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_AGE_NS_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    TRIGGERED_FIELD_NUMBER: _ClassVar[int]
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDATIONS_FIELD_NUMBER: _ClassVar[int]
    VICTIMS_FIELD_NUMBER: _ClassVar[int]
    vm: VmSummary
    statistics: _agent_pb2.JobStatistics
    cpi: float
    n_cpi: float
    victim_threshold_cpi: float
    mn_cpi: float
    mn_cpi_threshold: float
    victim_slots: int
    coefficient_version: int
    coefficient_age_ns: int
    suspects: _containers.RepeatedCompositeFieldContainer[Suspect]
    history: _containers.RepeatedCompositeFieldContainer[CpiPoint]
    triggered: bool
    detector: str
    evidence: _containers.RepeatedCompositeFieldContainer[_agent_pb2.Evidence]
    signals: _containers.RepeatedCompositeFieldContainer[Signal]
    events: _containers.RepeatedCompositeFieldContainer[_agent_pb2.VmEvent]
    recommendations: _containers.RepeatedCompositeFieldContainer[_agent_pb2.Recommendation]
    victims: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, vm: _Optional[_Union[VmSummary, _Mapping]] = ..., statistics: _Optional[_Union[_agent_pb2.JobStatistics, _Mapping]] = ..., cpi: _Optional[float] = ..., n_cpi: _Optional[float] = ..., victim_threshold_cpi: _Optional[float] = ..., mn_cpi: _Optional[float] = ..., mn_cpi_threshold: _Optional[float] = ..., victim_slots: _Optional[int] = ..., coefficient_version: _Optional[int] = ..., coefficient_age_ns: _Optional[int] = ..., suspects: _Optional[_Iterable[_Union[Suspect, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[CpiPoint, _Mapping]]] = ..., triggered: _Optional[bool] = ..., detector: _Optional[str] = ..., evidence: _Optional[_Iterable[_Union[_agent_pb2.Evidence, _Mapping]]] = ..., signals: _Optional[_Iterable[_Union[Signal, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[_agent_pb2.VmEvent, _Mapping]]] = ..., recommendations: _Optional[_Iterable[_Union[_agent_pb2.Recommendation, _Mapping]]] = ..., victims: _Optional[_Iterable[str]] = ...) -> None: ...

class Signal(_message.Message):
    __slots__ = ("name", "value", "baseline", "learnt")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    LEARNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    baseline: float
    learnt: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., baseline: _Optional[float] = ..., learnt: _Optional[float] = ...) -> None: ...

class Suspect(_message.Message):
    __slots__ = ("uuid", "name", "job", "coefficient", "cpu_usage_cores", "score", "reason", "inflicts")
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_FIELD_NUMBER: _ClassVar[int]
    CPU_USAGE_CORES_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    INFLICTS_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    name: str
    job: str
    coefficient: float
    cpu_usage_cores: float
    score: float
    reason: _agent_pb2.Reason
    inflicts: bool
    def __init__(self, uuid: _Optional[str] = ..., name: _Optional[str] = ..., job: _Optional[str] = ..., coefficient: _Optional[float] = ..., cpu_usage_cores: _Optional[float] = ..., score: _Optional[float] = ..., reason: _Optional[_Union[_agent_pb2.Reason, str]] = ..., inflicts: _Optional[bool] = ...) -> None: ...

class CpiPoint(_message.Message):
    __slots__ = ("start_unix_ns", "cpi", "cpu_usage_cores")
    START_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CPI_FIELD_NUMBER: _ClassVar[int]
    CPU_USAGE_CORES_FIELD_NUMBER: _ClassVar[int]
    start_unix_ns: int
    cpi: float
    cpu_usage_cores: float
    def __init__(self, start_unix_ns: _Optional[int] = ..., cpi: _Optional[float] = ..., cpu_usage_cores: _Optional[float] = ...) -> None: ...

class GetMomentsRequest(_message.Message):
    __slots__ = ("at_unix_ns", "before", "after", "metrics", "explain")
    AT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    at_unix_ns: int
    before: int
    after: int
    metrics: _containers.RepeatedScalarFieldContainer[str]
    explain: str
    def __init__(self, at_unix_ns: _Optional[int] = ..., before: _Optional[int] = ..., after: _Optional[int] = ..., metrics: _Optional[_Iterable[str]] = ..., explain: _Optional[str] = ...) -> None: ...

class GetMomentsResponse(_message.Message):
    __slots__ = ("first_unix_ns", "last_unix_ns", "moments", "problems")
    FIRST_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    first_unix_ns: int
    last_unix_ns: int
    moments: _containers.RepeatedCompositeFieldContainer[Moment]
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, first_unix_ns: _Optional[int] = ..., last_unix_ns: _Optional[int] = ..., moments: _Optional[_Iterable[_Union[Moment, _Mapping]]] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class Moment(_message.Message):
    __slots__ = ("unix_ns", "span_ms", "is_window", "clock_stepped", "vms", "status", "explanation")
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    SPAN_MS_FIELD_NUMBER: _ClassVar[int]
    IS_WINDOW_FIELD_NUMBER: _ClassVar[int]
    CLOCK_STEPPED_FIELD_NUMBER: _ClassVar[int]
    VMS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    unix_ns: int
    span_ms: int
    is_window: bool
    clock_stepped: bool
    vms: ListVmsResponse
    status: HostStatus
    explanation: VmExplanation
    def __init__(self, unix_ns: _Optional[int] = ..., span_ms: _Optional[int] = ..., is_window: _Optional[bool] = ..., clock_stepped: _Optional[bool] = ..., vms: _Optional[_Union[ListVmsResponse, _Mapping]] = ..., status: _Optional[_Union[HostStatus, _Mapping]] = ..., explanation: _Optional[_Union[VmExplanation, _Mapping]] = ...) -> None: ...
