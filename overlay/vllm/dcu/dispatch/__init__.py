# SPDX-License-Identifier: Apache-2.0
"""What a decision needs, and what is counted of it."""
