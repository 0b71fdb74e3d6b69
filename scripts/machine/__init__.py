"""This machine: Python, DTK, device, memory, and what the doctor says of them."""
