"""PANDA in the daemon: keeps slots and central's coefficients, ranks suspects, and decides on each VM.

In: CPI windows, central's coefficients, the behaviours of `agent.detection`. Out: decisions, events, reports, advice.
Next: `agent.uplink`, `agent.api`.
"""
