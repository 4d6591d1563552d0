"""What builds and the page cost central."""
