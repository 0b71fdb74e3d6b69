"""What is compiled for a DCU, and what may be."""
