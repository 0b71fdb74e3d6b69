# SPDX-License-Identifier: Apache-2.0
"""`tune`: what is the fastest right choice for each Linear of a model on this device, measured, then verified as `verify` does."""
