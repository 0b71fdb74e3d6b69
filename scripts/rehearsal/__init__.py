"""The rehearsal: a real `vllm serve` of the patched wheel on the CPU, whose device is a simulated gfx936."""
