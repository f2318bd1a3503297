"""Compile the Triton programs for kinds of GPU that this machine does not have, and print counts of instructions.

python -m tests.kernels.compile_triton 80 90 attend_queries
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

INSTRUCTIONS = {
    "reciprocals": r"MUFU\.RCP",
    "exponentials": r"MUFU\.EX2",
    "spills": r"\bSTL\b",
    "atomics": r"\bATOM|\bRED\.",
}
PROGRAMS = ("attend_queries", "differentiate_queries", "differentiate_keys")


def compile_program(name: str, architecture: int) -> dict[str, int]:
    """Return counts of instructions of a causal program for 64 hidden units and values of width 64."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from qkv.kernels.triton import additive_programs
    from qkv.kernels.triton.additive import Launch

    program = getattr(additive_programs, name)
    options = Launch(0, 64, 64).options(64, 64, gradient=name != "attend_queries")
    warps = options.pop("num_warps")
    kinds = {"q": "i32", "k": "i32", "offset": "i32", "flags": "*i32", **dict.fromkeys(options, "constexpr")}
    signature = {each: kinds.get(each, "*fp32") for each in program.arg_names}
    constants = {(program.arg_names.index(each),): value for each, value in options.items()}
    aligned = {(n,): [["tt.divisibility", 16]] for n, each in enumerate(program.arg_names) if "*" in signature[each]}
    source = ASTSource(program, signature, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": warps})
    disassembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run([disassembler, "-c", file.name], capture_output=True, text=True, check=True).stdout
    counts = {kind: len(re.findall(pattern, text)) for kind, pattern in INSTRUCTIONS.items()}
    return counts | {"shared bytes": compiled.metadata.shared}


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "0"  # before the first import of Triton
    given = sys.argv[1:]
    names = [name for name in given if not name.isdecimal()] or PROGRAMS
    print(json.dumps({f"{n} {name}": compile_program(name, int(n)) for n in given if n.isdecimal() for name in names}))
