"""What this host has measured, kept on its disk: windows for days, and the last 15 minutes tick by tick.

In: the state of the daemon at each tick, and its windows. Out: moments of the past, as messages of the local API.
Next: `agent.api` answers with them; `agent.cli` and `agent.top` show them, also of an agent that is stopped.
"""
