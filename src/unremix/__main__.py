"""``python -m unremix``; or run as a file, as experiments do.

Python puts the current folder on its path for ``-m``, and the folder of a file for that file. Run
as a file, nothing but what is installed or on ``PYTHONPATH`` is imported.
"""

import sys

if not __package__:
    here = __file__.rpartition("/")[0]
    # The package itself may be on no path; it comes last.
    sys.path[:] = [*(place for place in sys.path if place != here), here.rpartition("/")[0]]

from unremix.cli import main

if __name__ == "__main__":
    sys.exit(main())
