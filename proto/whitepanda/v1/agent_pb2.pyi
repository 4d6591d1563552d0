from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Analysis(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ANALYSIS_UNSPECIFIED: _ClassVar[Analysis]
    ANALYSIS_HOST: _ClassVar[Analysis]
    ANALYSIS_FLEET: _ClassVar[Analysis]

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_UNSPECIFIED: _ClassVar[Action]
    ACTION_CAP_CPU: _ClassVar[Action]
    ACTION_LIMIT_BANDWIDTH: _ClassVar[Action]
    ACTION_LIMIT_CACHE: _ClassVar[Action]
    ACTION_MIGRATE_SUSPECT: _ClassVar[Action]
    ACTION_MIGRATE_VICTIM: _ClassVar[Action]
    ACTION_NOTHING: _ClassVar[Action]

class Behaviour(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BEHAVIOUR_UNSPECIFIED: _ClassVar[Behaviour]
    BEHAVIOUR_UNKNOWN: _ClassVar[Behaviour]
    BEHAVIOUR_STEADY: _ClassVar[Behaviour]
    BEHAVIOUR_INFLICTING: _ClassVar[Behaviour]
    BEHAVIOUR_VICTIM: _ClassVar[Behaviour]
    BEHAVIOUR_AFFECTED: _ClassVar[Behaviour]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_NO_PMU: _ClassVar[Reason]
    REASON_PARANOID: _ClassVar[Reason]
    REASON_VPMU_CONFLICT: _ClassVar[Reason]
    REASON_MULTIPLEXED: _ClassVar[Reason]
    REASON_NO_RDT: _ClassVar[Reason]
    REASON_RDT_UNAVAILABLE: _ClassVar[Reason]
    REASON_NO_RMID: _ClassVar[Reason]
    REASON_NOT_SCHEDULED: _ClassVar[Reason]
    REASON_STALE: _ClassVar[Reason]
    REASON_VM_STARTING: _ClassVar[Reason]
    REASON_NO_PERMISSION: _ClassVar[Reason]
    REASON_SOURCE_OFF: _ClassVar[Reason]
    REASON_SOURCE_FAILED: _ClassVar[Reason]
    REASON_STUCK: _ClassVar[Reason]
    REASON_IDLE: _ClassVar[Reason]
    REASON_COUNTER_RESET: _ClassVar[Reason]
    REASON_NOT_PRESENT: _ClassVar[Reason]
    REASON_FD_LIMIT: _ClassVar[Reason]
    REASON_NOT_IN_TRACE: _ClassVar[Reason]
    REASON_NO_COEFFICIENTS: _ClassVar[Reason]
    REASON_INVALID_VALUE: _ClassVar[Reason]
    REASON_NOT_VISIBLE: _ClassVar[Reason]
    REASON_TIME_SLICED: _ClassVar[Reason]
    REASON_NO_EVENT: _ClassVar[Reason]
    REASON_NO_COUNTER: _ClassVar[Reason]
    REASON_RDT_UNASSIGNED: _ClassVar[Reason]
    REASON_SHARED: _ClassVar[Reason]
ANALYSIS_UNSPECIFIED: Analysis
ANALYSIS_HOST: Analysis
ANALYSIS_FLEET: Analysis
ACTION_UNSPECIFIED: Action
ACTION_CAP_CPU: Action
ACTION_LIMIT_BANDWIDTH: Action
ACTION_LIMIT_CACHE: Action
ACTION_MIGRATE_SUSPECT: Action
ACTION_MIGRATE_VICTIM: Action
ACTION_NOTHING: Action
BEHAVIOUR_UNSPECIFIED: Behaviour
BEHAVIOUR_UNKNOWN: Behaviour
BEHAVIOUR_STEADY: Behaviour
BEHAVIOUR_INFLICTING: Behaviour
BEHAVIOUR_VICTIM: Behaviour
BEHAVIOUR_AFFECTED: Behaviour
REASON_UNSPECIFIED: Reason
REASON_NO_PMU: Reason
REASON_PARANOID: Reason
REASON_VPMU_CONFLICT: Reason
REASON_MULTIPLEXED: Reason
REASON_NO_RDT: Reason
REASON_RDT_UNAVAILABLE: Reason
REASON_NO_RMID: Reason
REASON_NOT_SCHEDULED: Reason
REASON_STALE: Reason
REASON_VM_STARTING: Reason
REASON_NO_PERMISSION: Reason
REASON_SOURCE_OFF: Reason
REASON_SOURCE_FAILED: Reason
REASON_STUCK: Reason
REASON_IDLE: Reason
REASON_COUNTER_RESET: Reason
REASON_NOT_PRESENT: Reason
REASON_FD_LIMIT: Reason
REASON_NOT_IN_TRACE: Reason
REASON_NO_COEFFICIENTS: Reason
REASON_INVALID_VALUE: Reason
REASON_NOT_VISIBLE: Reason
REASON_TIME_SLICED: Reason
REASON_NO_EVENT: Reason
REASON_NO_COUNTER: Reason
REASON_RDT_UNASSIGNED: Reason
REASON_SHARED: Reason

class AgentMessage(_message.Message):
    __slots__ = ("hello", "batch", "heartbeat", "next")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    batch: CpiBatch
    heartbeat: Heartbeat
    next: CpiBatch
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., batch: _Optional[_Union[CpiBatch, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., next: _Optional[_Union[CpiBatch, _Mapping]] = ...) -> None: ...

class CentralMessage(_message.Message):
    __slots__ = ("ack", "coefficients", "welcome", "slow_down")
    ACK_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    SLOW_DOWN_FIELD_NUMBER: _ClassVar[int]
    ack: Ack
    coefficients: CoefficientUpdate
    welcome: Welcome
    slow_down: SlowDown
    def __init__(self, ack: _Optional[_Union[Ack, _Mapping]] = ..., coefficients: _Optional[_Union[CoefficientUpdate, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., slow_down: _Optional[_Union[SlowDown, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("host", "boot_id", "spool_id", "platform", "sent_unix_ns", "agent_version", "protocol_version", "min_protocol_version", "coefficient_version", "jobs", "window_ms", "held", "agent_started_unix_ns")
    HOST_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    SPOOL_ID_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MIN_PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    AGENT_STARTED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    host: str
    boot_id: str
    spool_id: str
    platform: str
    sent_unix_ns: int
    agent_version: str
    protocol_version: int
    min_protocol_version: int
    coefficient_version: int
    jobs: _containers.RepeatedScalarFieldContainer[str]
    window_ms: int
    held: _containers.RepeatedCompositeFieldContainer[JobTag]
    agent_started_unix_ns: int
    def __init__(self, host: _Optional[str] = ..., boot_id: _Optional[str] = ..., spool_id: _Optional[str] = ..., platform: _Optional[str] = ..., sent_unix_ns: _Optional[int] = ..., agent_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., min_protocol_version: _Optional[int] = ..., coefficient_version: _Optional[int] = ..., jobs: _Optional[_Iterable[str]] = ..., window_ms: _Optional[int] = ..., held: _Optional[_Iterable[_Union[JobTag, _Mapping]]] = ..., agent_started_unix_ns: _Optional[int] = ...) -> None: ...

class CpiBatch(_message.Message):
    __slots__ = ("spool_id", "sequence", "tasks", "task_index", "start_unix_ns", "duration_ns", "cpi", "cpu_usage_cores", "backlog", "events", "triggers", "metrics", "reasons", "vm_facts", "host_facts")
    SPOOL_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    CPI_FIELD_NUMBER: _ClassVar[int]
    CPU_USAGE_CORES_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    TRIGGERS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    VM_FACTS_FIELD_NUMBER: _ClassVar[int]
    HOST_FACTS_FIELD_NUMBER: _ClassVar[int]
    spool_id: str
    sequence: int
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    task_index: _containers.RepeatedScalarFieldContainer[int]
    start_unix_ns: _containers.RepeatedScalarFieldContainer[int]
    duration_ns: _containers.RepeatedScalarFieldContainer[int]
    cpi: _containers.RepeatedScalarFieldContainer[float]
    cpu_usage_cores: _containers.RepeatedScalarFieldContainer[float]
    backlog: bool
    events: _containers.RepeatedCompositeFieldContainer[VmEvent]
    triggers: _containers.RepeatedCompositeFieldContainer[Trigger]
    metrics: MetricColumns
    reasons: _containers.RepeatedCompositeFieldContainer[MetricReason]
    vm_facts: _containers.RepeatedCompositeFieldContainer[VmFacts]
    host_facts: HostFacts
    def __init__(self, spool_id: _Optional[str] = ..., sequence: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., task_index: _Optional[_Iterable[int]] = ..., start_unix_ns: _Optional[_Iterable[int]] = ..., duration_ns: _Optional[_Iterable[int]] = ..., cpi: _Optional[_Iterable[float]] = ..., cpu_usage_cores: _Optional[_Iterable[float]] = ..., backlog: _Optional[bool] = ..., events: _Optional[_Iterable[_Union[VmEvent, _Mapping]]] = ..., triggers: _Optional[_Iterable[_Union[Trigger, _Mapping]]] = ..., metrics: _Optional[_Union[MetricColumns, _Mapping]] = ..., reasons: _Optional[_Iterable[_Union[MetricReason, _Mapping]]] = ..., vm_facts: _Optional[_Iterable[_Union[VmFacts, _Mapping]]] = ..., host_facts: _Optional[_Union[HostFacts, _Mapping]] = ...) -> None: ...

class VmFacts(_message.Message):
    __slots__ = ("unix_ns", "vm", "epoch", "name", "job", "project", "flavor", "image", "owner", "manager", "vcpus", "cpu_quota_cores", "memory_bytes", "numa_nodes", "gone", "is_received_time", "limits")
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    VM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    FLAVOR_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    VCPUS_FIELD_NUMBER: _ClassVar[int]
    CPU_QUOTA_CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODES_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    IS_RECEIVED_TIME_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    unix_ns: int
    vm: str
    epoch: str
    name: str
    job: str
    project: str
    flavor: str
    image: str
    owner: str
    manager: str
    vcpus: int
    cpu_quota_cores: float
    memory_bytes: int
    numa_nodes: _containers.RepeatedScalarFieldContainer[int]
    gone: bool
    is_received_time: bool
    limits: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, unix_ns: _Optional[int] = ..., vm: _Optional[str] = ..., epoch: _Optional[str] = ..., name: _Optional[str] = ..., job: _Optional[str] = ..., project: _Optional[str] = ..., flavor: _Optional[str] = ..., image: _Optional[str] = ..., owner: _Optional[str] = ..., manager: _Optional[str] = ..., vcpus: _Optional[int] = ..., cpu_quota_cores: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., numa_nodes: _Optional[_Iterable[int]] = ..., gone: _Optional[bool] = ..., is_received_time: _Optional[bool] = ..., limits: _Optional[_Iterable[str]] = ...) -> None: ...

class HostFacts(_message.Message):
    __slots__ = ("unix_ns", "cpus", "memory_bytes", "caches", "network_cards", "disks", "manager", "labels", "is_received_time", "clock_set_unix_ns", "clock_step_s")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHES_FIELD_NUMBER: _ClassVar[int]
    NETWORK_CARDS_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    IS_RECEIVED_TIME_FIELD_NUMBER: _ClassVar[int]
    CLOCK_SET_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_STEP_S_FIELD_NUMBER: _ClassVar[int]
    unix_ns: int
    cpus: int
    memory_bytes: int
    caches: _containers.RepeatedCompositeFieldContainer[CacheDomain]
    network_cards: _containers.RepeatedCompositeFieldContainer[NetworkCard]
    disks: _containers.RepeatedCompositeFieldContainer[DiskFacts]
    manager: str
    labels: _containers.ScalarMap[str, str]
    is_received_time: bool
    clock_set_unix_ns: int
    clock_step_s: float
    def __init__(self, unix_ns: _Optional[int] = ..., cpus: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., caches: _Optional[_Iterable[_Union[CacheDomain, _Mapping]]] = ..., network_cards: _Optional[_Iterable[_Union[NetworkCard, _Mapping]]] = ..., disks: _Optional[_Iterable[_Union[DiskFacts, _Mapping]]] = ..., manager: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., is_received_time: _Optional[bool] = ..., clock_set_unix_ns: _Optional[int] = ..., clock_step_s: _Optional[float] = ...) -> None: ...

class CacheDomain(_message.Message):
    __slots__ = ("first_cpu", "cpus", "size_bytes")
    FIRST_CPU_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    first_cpu: int
    cpus: int
    size_bytes: int
    def __init__(self, first_cpu: _Optional[int] = ..., cpus: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class NetworkCard(_message.Message):
    __slots__ = ("name", "bits_per_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    bits_per_s: int
    def __init__(self, name: _Optional[str] = ..., bits_per_s: _Optional[int] = ...) -> None: ...

class DiskFacts(_message.Message):
    __slots__ = ("name", "size_bytes", "rotational")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROTATIONAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    rotational: bool
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., rotational: _Optional[bool] = ...) -> None: ...

class MetricColumns(_message.Message):
    __slots__ = ("numbers", "values")
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, numbers: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class MetricReason(_message.Message):
    __slots__ = ("task_index", "reason", "metrics")
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    task_index: int
    reason: Reason
    metrics: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, task_index: _Optional[int] = ..., reason: _Optional[_Union[Reason, str]] = ..., metrics: _Optional[_Iterable[int]] = ...) -> None: ...

class Trigger(_message.Message):
    __slots__ = ("unix_ns", "slot_ns", "since_unix_ns", "mn_cpi", "mn_cpi_threshold", "coefficient_version", "victims", "suspects", "victims_left_out", "suspects_left_out", "machine", "recommendations", "found_by", "ended", "affected_vms")
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    SLOT_NS_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    MN_CPI_FIELD_NUMBER: _ClassVar[int]
    MN_CPI_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    VICTIMS_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    VICTIMS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDATIONS_FIELD_NUMBER: _ClassVar[int]
    FOUND_BY_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    AFFECTED_VMS_FIELD_NUMBER: _ClassVar[int]
    unix_ns: int
    slot_ns: int
    since_unix_ns: int
    mn_cpi: float
    mn_cpi_threshold: float
    coefficient_version: int
    victims: _containers.RepeatedCompositeFieldContainer[TriggerVictim]
    suspects: _containers.RepeatedCompositeFieldContainer[TriggerSuspect]
    victims_left_out: int
    suspects_left_out: int
    machine: str
    recommendations: _containers.RepeatedCompositeFieldContainer[Recommendation]
    found_by: _containers.RepeatedScalarFieldContainer[Analysis]
    ended: bool
    affected_vms: int
    def __init__(self, unix_ns: _Optional[int] = ..., slot_ns: _Optional[int] = ..., since_unix_ns: _Optional[int] = ..., mn_cpi: _Optional[float] = ..., mn_cpi_threshold: _Optional[float] = ..., coefficient_version: _Optional[int] = ..., victims: _Optional[_Iterable[_Union[TriggerVictim, _Mapping]]] = ..., suspects: _Optional[_Iterable[_Union[TriggerSuspect, _Mapping]]] = ..., victims_left_out: _Optional[int] = ..., suspects_left_out: _Optional[int] = ..., machine: _Optional[str] = ..., recommendations: _Optional[_Iterable[_Union[Recommendation, _Mapping]]] = ..., found_by: _Optional[_Iterable[_Union[Analysis, str]]] = ..., ended: _Optional[bool] = ..., affected_vms: _Optional[int] = ...) -> None: ...

class Recommendation(_message.Message):
    __slots__ = ("action", "vm", "name", "job", "victim", "victim_name", "amount", "unit", "evidence", "effect", "commands")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    VM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    VICTIM_FIELD_NUMBER: _ClassVar[int]
    VICTIM_NAME_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    action: Action
    vm: str
    name: str
    job: str
    victim: str
    victim_name: str
    amount: float
    unit: str
    evidence: _containers.RepeatedScalarFieldContainer[str]
    effect: ExpectedEffect
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, action: _Optional[_Union[Action, str]] = ..., vm: _Optional[str] = ..., name: _Optional[str] = ..., job: _Optional[str] = ..., victim: _Optional[str] = ..., victim_name: _Optional[str] = ..., amount: _Optional[float] = ..., unit: _Optional[str] = ..., evidence: _Optional[_Iterable[str]] = ..., effect: _Optional[_Union[ExpectedEffect, _Mapping]] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class ExpectedEffect(_message.Message):
    __slots__ = ("signal", "before", "after", "low", "high", "threshold", "unknown_because")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    signal: str
    before: float
    after: float
    low: float
    high: float
    threshold: float
    unknown_because: str
    def __init__(self, signal: _Optional[str] = ..., before: _Optional[float] = ..., after: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., threshold: _Optional[float] = ..., unknown_because: _Optional[str] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("purpose", "words")
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    purpose: str
    words: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, purpose: _Optional[str] = ..., words: _Optional[_Iterable[str]] = ...) -> None: ...

class TriggerVictim(_message.Message):
    __slots__ = ("vm", "epoch", "name", "job", "cpi", "n_cpi", "threshold_cpi", "cpu_usage_cores", "slow_down", "found_by", "suspect")
    VM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    CPI_FIELD_NUMBER: _ClassVar[int]
    N_CPI_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_CPI_FIELD_NUMBER: _ClassVar[int]
    CPU_USAGE_CORES_FIELD_NUMBER: _ClassVar[int]
    SLOW_DOWN_FIELD_NUMBER: _ClassVar[int]
    FOUND_BY_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    vm: str
    epoch: str
    name: str
    job: str
    cpi: float
    n_cpi: float
    threshold_cpi: float
    cpu_usage_cores: float
    slow_down: Degradation
    found_by: _containers.RepeatedScalarFieldContainer[Analysis]
    suspect: str
    def __init__(self, vm: _Optional[str] = ..., epoch: _Optional[str] = ..., name: _Optional[str] = ..., job: _Optional[str] = ..., cpi: _Optional[float] = ..., n_cpi: _Optional[float] = ..., threshold_cpi: _Optional[float] = ..., cpu_usage_cores: _Optional[float] = ..., slow_down: _Optional[_Union[Degradation, _Mapping]] = ..., found_by: _Optional[_Iterable[_Union[Analysis, str]]] = ..., suspect: _Optional[str] = ...) -> None: ...

class TriggerSuspect(_message.Message):
    __slots__ = ("vm", "epoch", "name", "job", "coefficient", "cpu_usage_cores", "score", "reason", "inflicts")
    VM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_FIELD_NUMBER: _ClassVar[int]
    CPU_USAGE_CORES_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    INFLICTS_FIELD_NUMBER: _ClassVar[int]
    vm: str
    epoch: str
    name: str
    job: str
    coefficient: float
    cpu_usage_cores: float
    score: float
    reason: Reason
    inflicts: bool
    def __init__(self, vm: _Optional[str] = ..., epoch: _Optional[str] = ..., name: _Optional[str] = ..., job: _Optional[str] = ..., coefficient: _Optional[float] = ..., cpu_usage_cores: _Optional[float] = ..., score: _Optional[float] = ..., reason: _Optional[_Union[Reason, str]] = ..., inflicts: _Optional[bool] = ...) -> None: ...

class VmEvent(_message.Message):
    __slots__ = ("vm", "epoch", "name", "job", "latency_sensitive", "unix_ns", "behaviour", "before", "lasted_ns", "reason", "evidence", "degradation", "culprits", "machine", "found_by")
    VM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SENSITIVE_FIELD_NUMBER: _ClassVar[int]
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    BEHAVIOUR_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LASTED_NS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    DEGRADATION_FIELD_NUMBER: _ClassVar[int]
    CULPRITS_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    FOUND_BY_FIELD_NUMBER: _ClassVar[int]
    vm: str
    epoch: str
    name: str
    job: str
    latency_sensitive: bool
    unix_ns: int
    behaviour: Behaviour
    before: Behaviour
    lasted_ns: int
    reason: str
    evidence: _containers.RepeatedCompositeFieldContainer[Evidence]
    degradation: Degradation
    culprits: _containers.RepeatedScalarFieldContainer[str]
    machine: str
    found_by: _containers.RepeatedScalarFieldContainer[Analysis]
    def __init__(self, vm: _Optional[str] = ..., epoch: _Optional[str] = ..., name: _Optional[str] = ..., job: _Optional[str] = ..., latency_sensitive: _Optional[bool] = ..., unix_ns: _Optional[int] = ..., behaviour: _Optional[_Union[Behaviour, str]] = ..., before: _Optional[_Union[Behaviour, str]] = ..., lasted_ns: _Optional[int] = ..., reason: _Optional[str] = ..., evidence: _Optional[_Iterable[_Union[Evidence, _Mapping]]] = ..., degradation: _Optional[_Union[Degradation, _Mapping]] = ..., culprits: _Optional[_Iterable[str]] = ..., machine: _Optional[str] = ..., found_by: _Optional[_Iterable[_Union[Analysis, str]]] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("signal", "value", "baseline", "threshold")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    signal: str
    value: float
    baseline: float
    threshold: float
    def __init__(self, signal: _Optional[str] = ..., value: _Optional[float] = ..., baseline: _Optional[float] = ..., threshold: _Optional[float] = ...) -> None: ...

class Degradation(_message.Message):
    __slots__ = ("ratio", "low", "high", "cannot_tell", "model")
    RATIO_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    CANNOT_TELL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ratio: float
    low: float
    high: float
    cannot_tell: str
    model: str
    def __init__(self, ratio: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., cannot_tell: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("vm", "epoch", "job", "latency_sensitive", "name", "machine", "platform")
    VM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SENSITIVE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    vm: str
    epoch: str
    job: str
    latency_sensitive: bool
    name: str
    machine: str
    platform: str
    def __init__(self, vm: _Optional[str] = ..., epoch: _Optional[str] = ..., job: _Optional[str] = ..., latency_sensitive: _Optional[bool] = ..., name: _Optional[str] = ..., machine: _Optional[str] = ..., platform: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sent_unix_ns", "coefficient_version", "spooled_batches", "dropped_batches", "jobs")
    SENT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    sent_unix_ns: int
    coefficient_version: int
    spooled_batches: int
    dropped_batches: int
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sent_unix_ns: _Optional[int] = ..., coefficient_version: _Optional[int] = ..., spooled_batches: _Optional[int] = ..., dropped_batches: _Optional[int] = ..., jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class SequenceRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("spool_id", "ranges", "rejected_batches", "rejected_rows", "accepted_rows")
    SPOOL_ID_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    REJECTED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    REJECTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    spool_id: str
    ranges: _containers.RepeatedCompositeFieldContainer[SequenceRange]
    rejected_batches: _containers.RepeatedCompositeFieldContainer[RejectedBatch]
    rejected_rows: _containers.RepeatedCompositeFieldContainer[RejectedRows]
    accepted_rows: int
    def __init__(self, spool_id: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[SequenceRange, _Mapping]]] = ..., rejected_batches: _Optional[_Iterable[_Union[RejectedBatch, _Mapping]]] = ..., rejected_rows: _Optional[_Iterable[_Union[RejectedRows, _Mapping]]] = ..., accepted_rows: _Optional[int] = ...) -> None: ...

class RejectedBatch(_message.Message):
    __slots__ = ("sequence", "reason", "detail")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    reason: str
    detail: str
    def __init__(self, sequence: _Optional[int] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class RejectedRows(_message.Message):
    __slots__ = ("reason", "count")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    count: int
    def __init__(self, reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "central_version", "sent_unix_ns", "max_batch_rows", "max_batch_bytes", "heartbeat_ms")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CENTRAL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    central_version: str
    sent_unix_ns: int
    max_batch_rows: int
    max_batch_bytes: int
    heartbeat_ms: int
    def __init__(self, protocol_version: _Optional[int] = ..., central_version: _Optional[str] = ..., sent_unix_ns: _Optional[int] = ..., max_batch_rows: _Optional[int] = ..., max_batch_bytes: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ...) -> None: ...

class SlowDown(_message.Message):
    __slots__ = ("min_batch_interval_ms",)
    MIN_BATCH_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    min_batch_interval_ms: int
    def __init__(self, min_batch_interval_ms: _Optional[int] = ...) -> None: ...

class CoefficientUpdate(_message.Message):
    __slots__ = ("version", "created_unix_ns", "ttl_ns", "slot_ns", "statistics", "coefficients", "full", "removed_jobs", "tags")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    TTL_NS_FIELD_NUMBER: _ClassVar[int]
    SLOT_NS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    REMOVED_JOBS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    version: int
    created_unix_ns: int
    ttl_ns: int
    slot_ns: int
    statistics: _containers.RepeatedCompositeFieldContainer[JobStatistics]
    coefficients: _containers.RepeatedCompositeFieldContainer[Coefficient]
    full: bool
    removed_jobs: _containers.RepeatedScalarFieldContainer[str]
    tags: _containers.RepeatedCompositeFieldContainer[JobTag]
    def __init__(self, version: _Optional[int] = ..., created_unix_ns: _Optional[int] = ..., ttl_ns: _Optional[int] = ..., slot_ns: _Optional[int] = ..., statistics: _Optional[_Iterable[_Union[JobStatistics, _Mapping]]] = ..., coefficients: _Optional[_Iterable[_Union[Coefficient, _Mapping]]] = ..., full: _Optional[bool] = ..., removed_jobs: _Optional[_Iterable[str]] = ..., tags: _Optional[_Iterable[_Union[JobTag, _Mapping]]] = ...) -> None: ...

class JobTag(_message.Message):
    __slots__ = ("job", "tag")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    job: str
    tag: int
    def __init__(self, job: _Optional[str] = ..., tag: _Optional[int] = ...) -> None: ...

class JobStatistics(_message.Message):
    __slots__ = ("job", "platform", "samples", "mean_cpi", "std_cpi", "location_log_cpi", "scale_log_cpi")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MEAN_CPI_FIELD_NUMBER: _ClassVar[int]
    STD_CPI_FIELD_NUMBER: _ClassVar[int]
    LOCATION_LOG_CPI_FIELD_NUMBER: _ClassVar[int]
    SCALE_LOG_CPI_FIELD_NUMBER: _ClassVar[int]
    job: str
    platform: str
    samples: int
    mean_cpi: float
    std_cpi: float
    location_log_cpi: float
    scale_log_cpi: float
    def __init__(self, job: _Optional[str] = ..., platform: _Optional[str] = ..., samples: _Optional[int] = ..., mean_cpi: _Optional[float] = ..., std_cpi: _Optional[float] = ..., location_log_cpi: _Optional[float] = ..., scale_log_cpi: _Optional[float] = ...) -> None: ...

class Coefficient(_message.Message):
    __slots__ = ("job", "value", "samples", "standard_error", "method")
    JOB_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    job: str
    value: float
    samples: int
    standard_error: float
    method: str
    def __init__(self, job: _Optional[str] = ..., value: _Optional[float] = ..., samples: _Optional[int] = ..., standard_error: _Optional[float] = ..., method: _Optional[str] = ...) -> None: ...
