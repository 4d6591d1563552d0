"""PANDA on this host: from whom VMs suffer, and the decision on each VM.

In: CPI windows, central's coefficients, the behaviours of `agent.detection`. Out: decisions, events, reports, advice.
Next: `agent.uplink`, `agent.api`.
"""
