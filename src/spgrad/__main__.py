"""`python -m spgrad`."""

import sys

from spgrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
