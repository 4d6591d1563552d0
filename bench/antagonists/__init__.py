"""Every method on generated traces with known antagonists (docs/studies/antagonists.md)."""
