"""Cloud White on this host: who suffers, and how much.

In: the rates of each tick. Out: each VM's behaviour and degradation.
Next: `agent.antagonists`.
"""
