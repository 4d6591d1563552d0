"""Degradation models: read runs, fit rivals, choose by held-out error, write the file that the agent evaluates."""
