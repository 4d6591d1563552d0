"""D-Factor on real pairs and on a simulated day (docs/studies/dfactor.md)."""
