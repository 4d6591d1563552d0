"""Files: read within bounds, written whole or not at all, kept from others' eyes, and cells of CSV files."""
