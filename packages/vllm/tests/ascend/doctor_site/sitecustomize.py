"""Puts the host double into a process that did not ask for it: the probe of ``dsacp doctor``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ascend_double.runner_v2 import modules

modules()
