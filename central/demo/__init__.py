"""`whitepanda demo`: four simulated hosts and central, real processes, and an injected antagonist."""
