"""Imports an engine and prints, as JSON, why our hooks would not fit it; run as a process."""

import contextlib
import importlib
import json
import sys

from dsacp.app.processes.workers import end_with_parent

VLLM_SPECULATOR = "vllm.v1.worker.gpu.spec_decode.speculator"


def reasons(engine: str) -> list[str]:
    """Return every mismatch between the installed engine and what the plug-in stands on."""
    if engine == "vllm-ascend":
        plugin = importlib.import_module("dsacp.vllm.ascend.plugin")
        hooks = importlib.import_module("dsacp.vllm.ascend.hooks")
        builder = importlib.import_module(plugin.BUILDER_MODULE)
        rope = importlib.import_module(plugin.ROPE_MODULE)
        with contextlib.suppress(ImportError):  # vllm-ascend's own reads it as if it were there
            importlib.import_module(VLLM_SPECULATOR)
        drivers = (plugin.PROPOSER_MODULE, plugin.SPECULATOR_MODULE)
        loaded = [importlib.import_module(name) for name in drivers]
        found = [*hooks.missing_hooks(builder, rope), *hooks.drafting_hooks(*loaded)]
        return [str(reason) for reason in found]
    plugin = importlib.import_module("dsacp.vllm.plugin")
    return [str(reason) for reason in plugin.missing_hooks()]


if __name__ == "__main__":
    end_with_parent()  # an engine takes minutes to import, for nobody then
    print(json.dumps(reasons(sys.argv[1])))
