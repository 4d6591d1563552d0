"""Incident history, in SQLite or PostgreSQL, and webhooks.

In: reports of contention from the journal. Out: incidents with their suspects; messages to receivers.
Next: `central.api`.
"""
