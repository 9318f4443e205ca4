"""`python -m pimflow`."""

import sys

from pimflow.cli import main

sys.exit(main())
