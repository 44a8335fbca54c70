"""Tests beside an installed vllm-ascend; ``nox -s ascend`` makes the environment."""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

# other sessions have no vllm-ascend: there these files are not collected, and nox's closing
# report names the session that was not run
collect_ignore_glob = [] if importlib.util.find_spec("vllm_ascend") else ["test_*.py"]
