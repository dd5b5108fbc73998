"""The command line where its script is not on the path: `python -m gpbench plan`."""

from gpbench.cli.main import main

raise SystemExit(main())
