"""Questions about a fleet's history beside plain SQL (docs/history.md)."""
