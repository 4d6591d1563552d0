"""Pure algorithms over a whole fleet."""
