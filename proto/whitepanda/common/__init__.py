"""What agent and central share: errors, configuration, logging, TLS, sd_notify, the CLI. Sources need `texts` only."""
