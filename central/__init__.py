"""The aggregator: ingest, lake, engine, models, push back, fleet API."""
