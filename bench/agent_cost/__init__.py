"""What the agent costs its host."""
