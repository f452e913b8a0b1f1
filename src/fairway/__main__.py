"""`python -m fairway` is the `fairway` command."""

import sys

from fairway.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
