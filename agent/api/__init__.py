"""What the agent shows: the local API on a unix socket, and /metrics.

In: the state of the daemon. Out: messages of the local API, metrics for Prometheus, a client for the CLI.
Next: `agent.cli`, `agent.top`.
"""
