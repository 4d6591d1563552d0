"""Services that central offers to fleet tooling."""
