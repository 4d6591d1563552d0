"""What doctor finds, one thing at a time."""

from dataclasses import dataclass
from typing import Literal

from collector.base import Reason

State = Literal["ok", "missing", "off", "info"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `detail` says what is missing and the remedy; without a `required` one no agent starts."""

    name: str
    state: State
    detail: str
    required: bool = False
    reason: Reason = Reason.UNSPECIFIED
