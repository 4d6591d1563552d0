"""What doctor finds, one thing at a time."""

from dataclasses import dataclass
from typing import Literal

from collector.base import Reason

State = Literal["ok", "missing", "off", "info"]
#: Whether support bundles have a finding's detail: all, those with true names, or none (it may name central).
Privacy = Literal["public", "names", "secret"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `detail` says what is missing and the remedy; no agent starts without a `required` one."""

    name: str
    state: State
    detail: str
    required: bool = False
    reason: Reason = Reason.UNSPECIFIED
    privacy: Privacy = "names"

    def as_json(self) -> dict[str, object]:
        """Return the finding for programs."""
        return {
            "name": self.name,
            "state": self.state,
            "required": self.required,
            "reason": self.reason.code if self.reason else None,
            "detail": self.detail,
        }
