"""Compile every kernel to PTX and cubin for CUDA architectures, without a GPU.

Run: python tools/offline/compile_cuda.py [sm ...]   (default 80 90 100)
"""

import sys
import time
from typing import Any

import triton
from cases import CASES
from launches import folder_of, record
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dsacp.ascend_ir import Launch


def compile_launch(launch: Launch, capability: int) -> Any:
    """Compile one launch ahead of time.

    Pointers are taken as 16-byte aligned, as at run time, where the kernel specialises them at all.
    """
    names = launch.kernel.arg_names
    signature = {name: launch.signature.get(name, "constexpr") for name in names}
    constants = {(names.index(name),): value for name, value in launch.constants.items()}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if signature[name].startswith("*") and not launch.kernel.params[index].do_not_specialize
    }
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=aligned)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options=launch.options)


def main() -> int:
    """Print a line a kernel and architecture; return the number of failures."""
    capabilities = [int(argument) for argument in sys.argv[1:]] or [80, 90, 100]
    failures = passed = 0
    print("triton", triton.__version__)
    for case, call in CASES.items():
        for launch in record(call, "cuda"):
            for capability in capabilities:
                started = time.perf_counter()
                label = f"sm_{capability} {case}/{folder_of(launch)}"
                try:
                    done = compile_launch(launch, capability)
                except Exception as error:
                    failures += 1
                    print(f"FAIL {label}: {type(error).__name__}: {str(error)[-300:]}")
                    continue
                passed += 1
                spent = time.perf_counter() - started
                cubin, ptx = len(done.asm["cubin"]), len(done.asm["ptx"])
                print(f"ok   {label}: ptx {ptx} B, cubin {cubin} B, {spent:.2f} s", flush=True)
    print(f"{passed} passed, {failures} failed")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
