"""What the host can tell, one file per source. No analysis."""
