"""Our detector of interference: types first."""

from __future__ import annotations

from agent.analysis.behaviour import AnyDetector, Behaviour, Detection, Evidence, VmState

__all__ = ["AnyDetector", "Behaviour", "Detection", "Evidence", "VmState"]
