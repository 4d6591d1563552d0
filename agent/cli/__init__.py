"""Commands that need only the light base; one file each."""
