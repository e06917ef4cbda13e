"""``python -m tests.interop``."""

import sys

from tests.interop.run import main

sys.exit(main())
