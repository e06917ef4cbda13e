"""Lets the Python processes of Spark start in less than half of their time: for tests, which have hundreds of them.

Spark puts a zip of PySpark ahead of the installed one. Python compiles what it imports from a zip each time.
"""

from __future__ import annotations

import sys

sys.path[:] = [path for path in sys.path if not path.endswith("/python/lib/pyspark.zip")]
