"""Cloud White's detectors: who suffers, and who inflicts. Pure.

In: a tick's signals of all VMs. Out: each VM's behaviour with its evidence.
Next: `agent.detection`.
"""
