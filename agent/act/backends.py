"""What a limit is set by: a backend knows a VM's state as a text, and makes it another one."""

from typing import Protocol


class Backend(Protocol):
    """One way to limit VMs. All methods raise `ActError`, in one line, where it does not do what is asked of it.

    Attributes:
        settles_s: so long after a `write` that was interrupted the state may still change.

    """

    @property
    def settles_s(self) -> float:
        """See the class."""

    def read(self, vm: str) -> str | None:
        """Return a VM's state now; None: there is no such VM, so nothing of it has to be undone."""

    def target(self, vm: str, amount: float) -> str:
        """Return the state that limits a VM to an amount. Changes nothing."""

    def write(self, vm: str, state: str) -> None:
        """Make a VM's state `state`: one of `target`, or one that `read` returned."""

    def is_ours(self, now: str, after: str) -> bool:
        """Whether a state is `after`, or what is left where making it so was interrupted."""

    def command(self, vm: str, state: str) -> str:
        """Return what an operator would type to make it so."""
