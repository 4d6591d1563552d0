"""Hardware counters through perf_event_open, without a library."""
