"""Requests to the service, its answers and its records: plain values, as JSON on the socket and on the disk."""

from typing import Literal, NamedTuple, Protocol

import msgspec

from whitepanda.common.errors import WhitepandaError

Action = Literal["cap-cpu", "limit-bandwidth", "limit-cache"]

#: In what each action's amount is.
AMOUNTS: dict[Action, str] = {"cap-cpu": "cores", "limit-bandwidth": "percent", "limit-cache": "ways"}

#: Of an answer.
MAX_BYTES = 1 << 20


class ActError(WhitepandaError):
    """libvirt, resctrl or the control group fails; one line says which VM, what failed, and why."""

    exit_code = 4


class RefusedError(WhitepandaError):
    """The limits of the configuration forbid it, or the request makes no sense."""

    exit_code = 3


class Peer(NamedTuple):
    """Who asked, from the kernel."""

    uid: int
    pid: int


class Apply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="apply"):
    """Limit a VM for this many seconds; undo it earlier if `victim` gets worse. Both are UUIDs or names."""

    action: Action
    vm: str
    amount: float
    seconds: float
    victim: str = ""
    why: str = ""


class Undo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="undo"):
    """Undo an action by its number, or the one on a VM (UUID or name); 0 and "": all of them."""

    number: int = 0
    vm: str = ""


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ask"):
    """Ask what is in force, and what the service may do."""


Request = Apply | Undo | Ask


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An action as it is kept on the disk, from before the change until it is undone.

    `before` and `after` are states of the backend. The end is by the kernel's clock since boot: no step of the wall
    clock moves it, and after a reboot (another `boot_id`) it is over. `victim_signal` is the kind of
    `victim_degradation` (`agent.act.victims`). `name` is the VM's, `group` the control group whose `cpu.max` was set
    ("": libvirt or resctrl limits it).
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
    """The limits of the configuration: fields of `agent.config.ActSection`."""

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
    """An action in force, for people: the time left, and why it could not be undone yet."""

    record: Record
    left_s: float
    trouble: str = ""


class Done(msgspec.Struct, frozen=True):
    """The outcome for one action. `result`: applied, dry_run, undone, left_alone, gone, failed."""

    number: int
    action: Action
    vm: str
    before: str
    after: str
    result: str
    detail: str = ""


class Answer(msgspec.Struct, frozen=True):
    """The service's answer; if `error` says why not, `exit_code` is the CLI's."""

    done: tuple[Done, ...] = ()
    in_force: tuple[Listing, ...] = ()
    limits: Limits | None = None
    error: str = ""
    exit_code: int = 0


class Backend(Protocol):
    """One way to limit VMs; a VM's state is a text. All methods raise `ActError` if it fails."""

    #: How long after an interrupted `write` the state may still change. 0: the kernel is done when a call returns.
    settles_s: float = 0.0

    def read(self, vm: str) -> str | None:
        """Return a VM's state now; None: there is no such VM, so nothing has to be undone."""

    def target(self, vm: str, amount: float) -> str:
        """Return the state that limits a VM to an amount. Changes nothing."""

    def write(self, vm: str, state: str) -> None:
        """Set a VM's state to one that `target` or `read` returned."""

    def is_ours(self, now: str, after: str) -> bool:
        """Whether a state is `after`, or what an interrupted write of it leaves; by default nothing."""
        return now == after

    def command(self, vm: str, state: str) -> str:
        """Return the shell command for it."""
