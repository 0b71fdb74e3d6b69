"""A running server of ours, and the models it serves."""
