"""Object code of a function that Numba has compiled, which needs nothing of Numba at run time."""

from __future__ import annotations

import importlib.metadata
from importlib import import_module
from typing import Any

from tidegauge.compare.machine_code import symbol, target

#: Elements that go through a loop at once. Left to itself, LLVM takes half of what a register of 512 bits holds; where
#: registers are shorter, it uses several.
LANES = 16


def prepare() -> None:
    """Tell LLVM what holds for the whole process, before anything is compiled."""
    llvm: Any = import_module("llvmlite.binding")
    llvm.set_option("", f"--force-vector-width={LANES}")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def object_code(module: str, variant: str, function: Any) -> bytes:
    """Of one C function, for this processor, with one symbol.

    Raises `RuntimeError` where this release of Numba makes code of another kind.
    """
    llvm: Any = import_module("llvmlite.binding")
    machine = target(llvm)
    parsed = llvm.parse_assembly(function.inspect_llvm())
    inner = function.native_name.removeprefix("cfunc.")
    # The function raises nothing. Once LLVM sees that, Numba's ways to hand on an exception are dead code.
    passes = llvm.create_new_module_pass_manager()
    passes.add_ipsccp_pass()
    passes.add_simplify_cfg_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(parsed, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    foreign = [f.name for f in parsed.functions if f.is_declaration and not f.name.startswith("llvm.")]
    if foreign:
        version = importlib.metadata.version("numba")
        raise RuntimeError(f"Numba {version} compiles the statistics into code that needs {foreign[0]}")
    parsed.get_function(inner).name = symbol(module, variant)
    return bytes(machine.emit_object(parsed))
