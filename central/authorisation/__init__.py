"""Who may call what: the role of each RPC, and the certificates that no longer count.

In: the names and the serial number of a client's certificate. Out: the call, or a refusal, by gRPC and by HTTP.
Next: `central.ingest` (a host speaks for itself only), `central.api`, `central.web`.
"""
