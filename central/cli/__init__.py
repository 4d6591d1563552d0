"""Commands that need the central extra; one file each."""
