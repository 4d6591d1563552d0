"""The stream to central.

In: windows, events and reports. Out: numbered batches, spooled on disk until central acknowledges them.
Next: `central.ingest`.
"""
