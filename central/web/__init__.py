"""The fleet API as JSON over HTTP, /metrics and the page.

In: HTTP requests. Out: the answers of `central.api`, the OpenAPI document, static files.
Next: browsers, Prometheus, fleet tooling.
"""
