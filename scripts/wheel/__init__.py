"""The wheel: from the applied tree to a file in dist/."""
