# SPDX-License-Identifier: Apache-2.0
"""The rungs of `verify`, one module each; `vllm.dcu.evidence.ladder` climbs them."""
