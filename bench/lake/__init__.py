"""The lake beside Delta tables: what a roll costs, what a kill loses."""
