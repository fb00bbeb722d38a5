"""Types of NumPy arrays, for annotations. Task code has its own in `dataset.task_files`."""

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
