"""``python -m tests.interop``; ``python -m tests.interop sdk`` for our own client on other brokers."""

import sys

from tests.interop import run, sdk

sys.exit(sdk.main(sys.argv[2:]) if sys.argv[1:2] == ["sdk"] else run.main())
