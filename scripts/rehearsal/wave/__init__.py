"""Upstream's LLMM1 on the CPU: its own text, compiled for the host, with lanes, waves and barriers modelled at the DCU's width."""
