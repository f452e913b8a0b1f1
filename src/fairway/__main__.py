"""`python -m fairway` is the `fairway` command."""

import sys

from fairway.cli.main import main

sys.exit(main())
