"""Answers of models: where a VM fits, how long a job would run, whether an upgrade paid.

In: requests. Out: what `central.placement`, `central.runtimes` and `central.upgrades` find.
Next: `central.api.fleet`.
"""
