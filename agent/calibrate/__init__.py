"""The calibration campaign: a served VM under measured load, stressors beside it, and the RUNS file of both."""
