"""Cloud White's detectors, from one tick's signals to each VM's behaviour: who suffers, and who inflicts it. Pure.

In: a tick's signals of all VMs. Out: each VM's behaviour with its evidence.
Next: `agent.detection`, which runs the configured detector every tick.
"""
