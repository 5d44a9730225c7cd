"""``python -m unremix``."""

import sys

from unremix.cli import main

if __name__ == "__main__":
    sys.exit(main())
