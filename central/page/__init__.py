"""The fleet page: static files that ask the fleet API of the same server, and nothing else."""
