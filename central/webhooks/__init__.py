"""Incidents told to others over HTTP, in the format of Alertmanager's webhooks: at least once, in order, signed.

`messages` says what is told, `tables` what waits, `sender` how it is posted, `dispatcher` when.
"""
