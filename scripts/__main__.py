"""`python -m scripts VERB`: see `python -m scripts help`.

This file alone is read by Pythons that are too old for the rest, so that they are told so in a sentence.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036
    sys.stderr.write(
        "error: this is Python %d.%d\n"  # noqa: UP031
        "  why: the tools and vLLM 0.18.1 need 3.10 or newer\n"
        "  do:  make doctor PYTHON=/path/to/python3.10\n" % sys.version_info[:2]
    )
    sys.exit(13)

from scripts.cli import run

sys.exit(run(sys.argv[1:]))
