"""Compile the Triton programs for kinds of GPU that this machine does not have, and print counts of instructions.

python -m tests.kernels.compile_triton 80 90 attend_queries
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

INSTRUCTIONS = {
    "reciprocals": r"MUFU\.RCP",
    "exponentials": r"MUFU\.EX2",
    "special functions": r"\bMUFU\.",
    "spills": r"\bSTL\b",
    "atomics": r"\b(?:ATOMG?|REDG?)\.",
}
ADDITIVE = ("attend_queries", "differentiate_queries", "differentiate_keys")
ROUNDED = tuple(f"rounded {name}" for name in ADDITIVE)

PRODUCTS = {"gated": (True, 0, 0), "sparsemax": (False, 1, 0), "entmax15": (False, 2, 0), "top-32": (False, 0, 32)}
"""Whether there is a gate, the power of the weights, and the number of kept keys."""
PRODUCT_PROGRAMS = tuple(
    f"{kind} {program}"
    for kind in PRODUCTS
    for program in ("attend_products", "differentiate_product_queries", "differentiate_product_keys")
)

READOUTS = {
    f"{kind} {program}": (kind, program)
    for kind in ("half", "single", "additive")
    for program in ("rows", "mapped", "cells", "table")
}


def compile_program(program: Any, options: dict[str, Any], kinds: dict[str, str], architecture: int) -> dict[str, int]:
    """Return counts of instructions of a program.

    Args:
        program: function decorated with `triton.jit`.
        options: compile-time arguments, and "num_warps".
        kinds: types of the arguments that are not arrays of float32.
        architecture: compute capability, such as 90.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = dict(options)
    warps = options.pop("num_warps")
    kinds = {**kinds, **dict.fromkeys(options, "constexpr")}
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


def compile_additive(name: str, architecture: int) -> dict[str, int]:
    """Return counts of a causal program of the additive score for 64 hidden units and values of width 64.

    The name may begin with "rounded", for one product of TF32.
    """
    from qkv.kernels.triton import additive_programs
    from qkv.kernels.triton.program_kernel import Launch, additive_blocks, power_of_two

    *rounded, name = name.split()
    blocks = additive_blocks(divmod(architecture, 10), 64, rounded=bool(rounded))
    block = blocks[ADDITIVE.index(name)]
    options = Launch(0, blocks, "tf32" if rounded else "tf32x3").options(block, 64) | {"H": 64}
    options |= {} if name == "attend_queries" else {"HP": power_of_two(64)}
    kinds = {"q": "i32", "k": "i32", "offset": "i32", "flags": "*i32"}
    counts = compile_program(getattr(additive_programs, name), options, kinds, architecture)
    return counts | {"pairs of a thread": block.queries * block.keys // (32 * block.warps)}


def compile_product(name: str, architecture: int) -> dict[str, int]:
    """Return counts of a program for products 64 wide by one product of TF32, such as "sparsemax attend_products"."""
    from qkv.kernels.triton import product_programs
    from qkv.kernels.triton.product_kernel import ProductLaunch, product_block

    kind, program = name.split()
    gated, power, top = PRODUCTS[kind]
    launch = ProductLaunch(0, product_block(64), gated, power, top, 0.125, "tf32")
    kinds = {"q": "i32", "k": "i32", "offset": "i32", "scale": "fp32", "bad_value": "*i32", "last_of": "*i32"}
    options = launch.options(64, 64, forward=program == "attend_products")
    return compile_program(getattr(product_programs, program), options, kinds, architecture)


def compile_readout(name: str, architecture: int) -> dict[str, int]:
    """Return counts of a causal program for readouts, such as "half rows", for vectors, units and values 64 wide.

    Rows keep the 8 largest logits, mapped rows write a table of cells of 8 keys, and cells and tables are added up to
    means of cells of 8 × 8 pairs.
    """
    from qkv.kernels.triton import readout_programs
    from qkv.kernels.triton.program_kernel import readout_blocks

    kind, program = READOUTS[name]
    block = readout_blocks(64, kind == "half", program == "rows")[program in ("cells", "table")]
    options = {"ADDITIVE": kind == "additive", "W": 64, "WP": 64, "CAUSAL": True, "num_warps": block.warps}
    options["PRECISION"] = "tf32" if kind == "half" else "tf32x3"
    kinds = dict.fromkeys(("q", "k", "offset", "position", "down", "across", "groups", "row_parts", "key_parts"), "i32")
    kinds |= {"scale": "fp32", "flags": "*i32", "best_logits": "*i64", "row_starts": "*i32", "key_starts": "*i32"}
    if kind == "half":
        kinds |= dict.fromkeys(("left", "right", "value", "output"), "*bf16")
    if program in ("rows", "mapped"):
        options |= {"DV": 64, "DVP": 64, "ENTROPY": True, "DISTANCE": True, "TOPP": 16 if program == "rows" else 0}
        options |= {"BQ": block.queries, "BK": block.keys, "MAPPED": program == "mapped", "MAXIMUM": False}
        options |= {"C": block.keys // 8, "CS": 8}
        return compile_program(readout_programs.attend_rows, options, kinds, architecture)
    options |= {
        "TABLE": program == "table",
        "MEAN": True,
        "MAXIMUM": False,
        "R": block.queries // 8,
        "RS": 8,
        "C": block.keys // 8,
        "CS": 8,
    }
    return compile_program(readout_programs.pool_cells, options, kinds, architecture)


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "0"  # before the first import of Triton
    given = sys.argv[1:]
    names = [name for name in given if not name.isdecimal()] or (*ADDITIVE, *PRODUCT_PROGRAMS, *READOUTS)
    compilers = dict.fromkeys((*ADDITIVE, *ROUNDED), compile_additive) | dict.fromkeys(READOUTS, compile_readout)
    counts = {
        f"{n} {name}": compilers.get(name, compile_product)(name, int(n))
        for n in given
        if n.isdecimal()
        for name in names
    }
    print(json.dumps(counts))
