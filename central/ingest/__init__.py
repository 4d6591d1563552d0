"""The agents' streams.

In: batches over mTLS. Out: acknowledgements, once the journal has a batch on disk.
Next: `central.validation`, `central.journal`.
"""
