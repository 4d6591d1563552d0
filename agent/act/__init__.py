"""`whitepanda act`: carries a recommendation out within limits, and undoes it. The only part that changes a VM."""
