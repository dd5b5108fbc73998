"""`python -m gpbench.cli`: the command line, where no script is installed."""

import sys

from gpbench.cli.main import main

sys.exit(main())
