"""Cloud White in the daemon: runs the detector each tick, keeps its baselines on disk, estimates degradation.

In: the rates of each tick. Out: each VM's behaviour and degradation, as verdicts.
Next: `agent.antagonists`.
"""
