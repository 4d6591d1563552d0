"""What could be done about contention. Pure.

In: victims, suspects and limits of the host. Out: ranked recommendations with their expected effect.
Next: `agent.antagonists`.
"""
