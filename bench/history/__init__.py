"""The live trigger against the paper's rule (docs/studies/trigger.md)."""
