"""What one hostile host costs the others."""
