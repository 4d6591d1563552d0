"""What agent and central share and no source needs: errors, configuration, logging, TLS, sd_notify, the CLI."""
