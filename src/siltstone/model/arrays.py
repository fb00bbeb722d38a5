"""Types of NumPy arrays, for annotations. Code in Spark's workers has its own in `spark_tasks.io`."""

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
