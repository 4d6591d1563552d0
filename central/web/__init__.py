"""The fleet API as JSON over HTTP, /metrics and the page; what both gRPC and HTTP check before a question is asked.

In: HTTP requests. Out: the answers of `central.api`, the OpenAPI document, static files.
Next: browsers, Prometheus, fleet tooling.
"""
