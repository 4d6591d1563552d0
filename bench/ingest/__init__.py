"""Ingest at scale, beside Prometheus."""
