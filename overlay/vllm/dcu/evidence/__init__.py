# SPDX-License-Identifier: Apache-2.0
"""Evidence: what it is bound to, how it is climbed, stored and believed."""
