"""The aggregator.

In: batches of all hosts. Out: job statistics and coefficients for hosts; incidents; answers of the fleet API.
A batch goes through ingest, validation, journal and lake; a version through build and coefficients.
"""
