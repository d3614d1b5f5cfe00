"""`python -m onecard`: the same as the `onecard` command."""

import sys

from onecard.cli import main

if __name__ == "__main__":
    sys.exit(main())
