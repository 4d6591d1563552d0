"""The fleet API, whichever way it is asked.

In: requests of operators. Out: answers from the lake, versions and incident history; one file per subject, those of
models in `decisions`.
Next: `central.web`.
"""
