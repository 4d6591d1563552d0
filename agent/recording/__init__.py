"""Recording of a host, and replay.

In: the sources of this host, a recording, or a trace. Out: a recording; windows made of one, to central or to a view.
Next: `agent.uplink`, `agent.top`.
"""
