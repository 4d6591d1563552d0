"""Pure algorithms that run on the host. Central imports them to evaluate the code that hosts run.

In: arrays and dataclasses. Out: dataclasses. No I/O, no clocks.
Next: `agent.detection`, `agent.antagonists`.
"""
