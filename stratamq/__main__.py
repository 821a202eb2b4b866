"""``python -m stratamq`` is the ``stratamq`` command; `stratamq up` starts its nodes this way."""

import sys

from stratamq.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
