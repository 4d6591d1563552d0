"""`whitepanda demo`: four simulated hosts and central, real processes, and an injected antagonist.

In: a seed. Out: the demonstration's course and result.
Next: the terminal.
"""
