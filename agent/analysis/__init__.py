"""Pure algorithms that run on the host. Central may import them to evaluate the very code that hosts run."""
