"""What this host can measure, and the support bundle.

In: probes of all sources, the configuration, the local API. Out: findings with remedies; an archive with pseudonyms.
Next: `agent.cli`.
"""
