"""The fleet API over gRPC.

In: requests of operators. Out: answers from the lake, versions and incident history; one file per subject.
Next: `central.web`.
"""
