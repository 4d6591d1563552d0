"""WSMeter on a simulated fleet and on the Google sample (docs/studies/wsmeter.md)."""
