"""What is asked of the service, and what it keeps: plain values, as JSON on the socket and on the disk."""

from typing import Literal, NamedTuple

import msgspec

from whitepanda.common.errors import WhitepandaError

Action = Literal["cap-cpu", "limit-bandwidth", "limit-cache"]

#: In what each action's amount is.
AMOUNTS: dict[Action, str] = {"cap-cpu": "cores", "limit-bandwidth": "percent", "limit-cache": "ways"}


#: Of an answer.
MAX_BYTES = 1 << 20


class ActError(WhitepandaError):
    """libvirt, resctrl or the control group does not do what is asked of it; one line says what, of whom, and why."""

    exit_code = 4


class RefusedError(WhitepandaError):
    """The limits of the configuration forbid it, or what is asked makes no sense."""

    exit_code = 3


class Peer(NamedTuple):
    """Who asked, by the kernel's word; the service itself has no pid of its own to tell."""

    uid: int
    pid: int


class Apply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="apply"):
    """Limit a VM (UUID or name) for so many seconds.

    `victim` (UUID or name) is watched: if it fares worse, the limit is undone.
    """

    action: Action
    vm: str
    amount: float
    seconds: float
    victim: str = ""
    why: str = ""


class Undo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="undo"):
    """Undo an action by its number, or that on a VM (UUID or name); 0 and "": all of them."""

    number: int = 0
    vm: str = ""


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ask"):
    """What is in force, and what the service may do."""


Request = Apply | Undo | Ask


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An action as it is kept on the disk, from before the change until it is undone.

    `before` and `after` are the backend's words for the VM's state. The end is told by the kernel's clock since boot:
    no step of the wall clock moves it, and after a reboot (another `boot_id`) it is over. `victim_signal` is of which
    kind `victim_degradation` is, as `agent.act.victims` calls it. `name` is the VM's, and
    `group` the control group whose `cpu.max` was set; "": libvirt or resctrl limits it.
    """

    number: int
    action: Action
    vm: str
    amount: float
    before: str
    after: str
    began_unix_ns: int
    until_boot_ns: int
    boot_id: str
    uid: int
    pid: int
    victim: str = ""
    victim_degradation: float | None = None
    victim_signal: str = ""
    why: str = ""
    is_applied: bool = False
    name: str = ""
    group: str = ""


class Limits(msgspec.Struct, frozen=True):
    """What the configuration allows; as `agent.config.ActSection`."""

    enabled: bool
    dry_run: bool
    max_share: float
    max_seconds: float
    cool_down_s: float
    min_cores: float
    min_bandwidth_percent: int
    min_ways: int
    worse_ratio: float


class Listing(msgspec.Struct, frozen=True):
    """An action in force, for people: how long it still lasts, and what the next look at it said."""

    record: Record
    left_s: float
    trouble: str = ""


class Done(msgspec.Struct, frozen=True):
    """What came of a request about one action. `result`: applied, dry_run, undone, left_alone, gone, failed."""

    number: int
    action: Action
    vm: str
    before: str
    after: str
    result: str
    detail: str = ""


class Answer(msgspec.Struct, frozen=True):
    """The service's answer: `error` says why not, with the exit code that the CLI ends with."""

    done: tuple[Done, ...] = ()
    in_force: tuple[Listing, ...] = ()
    limits: Limits | None = None
    error: str = ""
    exit_code: int = 0
