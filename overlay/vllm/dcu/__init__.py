# SPDX-License-Identifier: Apache-2.0
"""What vLLM knows about Hygon DCU devices: arch facts, capability records, the gate, evidence."""
