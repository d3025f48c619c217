"""Compiled loops over tensors: made by Numba once for a processor, kept on disk, run without Numba.

Importing Numba and compiling take seconds of processor time, more than most comparisons. So the object code that LLVM
makes is kept, and later processes only link it, with llvmlite, which takes milliseconds. It is kept in the first of
these folders that can be written: `$NUMBA_CACHE_DIR`, `$CACHE_DIRECTORY` (systemd's), `$XDG_CACHE_HOME/tidegauge`,
`~/.cache/tidegauge`; where there is none, each process compiles for itself. Code that another user could have written
is not run.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import logging
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tidegauge.errors import TidegaugeError

log = logging.getLogger(__name__)

#: Types of device tensors that there is code for.
DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32")
#: Of each C function first: places for what Numba returns and raises (nothing).
_RETURNED = [ctypes.c_void_p] * 2
#: Of the sweep: codes, reference, lines, width, elements
#: from line to line, whether f² is wanted by column, inverse scale, zero point, pivot, lowest and highest code, and the
#: arrays `lines`, `columns`, `narrow`, `out` of `sweep`.
ARGUMENTS = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 4 + [ctypes.c_double] * 5 + [ctypes.c_void_p] * 4

#: Types of codes that the loops over codes know, by the number that stands for them there.
KINDS = ("int8", "uint8", "int16", "uint16")
#: Of the loops over codes: the codes of two tensors, then as `taps.entry` names them.
TAPS = [ctypes.c_void_p] * 7 + [ctypes.c_int64] + [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 6 + [ctypes.c_void_p]

#: Rows of a result that the loops of 1 × 1 convolutions make together.
ROWS = 8
#: Of these loops: as `pointwise.entry` names them.
POINTWISE = [ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_float] * 2, *[ctypes.c_void_p] * 2, *[ctypes.c_float] * 2]
POINTWISE += [*[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 7, ctypes.c_void_p]

#: What the modules that write object code share.
_PARTS = ("bits.py", "decode.py", "emit.py", "machine_code.py")
_MAGIC = b"tidegauge object 1\n"
_lock = threading.Lock()
_ready: dict[str, Callable[..., int]] = {}
#: What owns the linked code.
_engines: list[Any] = []


def sweep(dtype: str) -> Callable[..., int]:
    """The sweep for device tensors of one of `DTYPES`, called with pointers and numbers; other threads run meanwhile.

    Raises `TidegaugeError` where Numba is missing.
    """
    return _function("sweep", dtype, ARGUMENTS)


def taps() -> Callable[..., int]:
    """The loops over codes, called with pointers and numbers; other threads run meanwhile. Raises as `sweep`."""
    return _function("taps", "codes", TAPS)


def pointwise() -> Callable[..., int]:
    """The loops of 1 × 1 convolutions over codes, called likewise. Raises as `sweep`."""
    return _function("pointwise", "codes", POINTWISE)


def _function(module: str, variant: str, arguments: Sequence[Any]) -> Callable[..., int]:
    with _lock:
        name = symbol(module, variant)
        if name not in _ready:
            _ready[name] = _link(module, variant, [*_RETURNED, *arguments])
        return _ready[name]


def _link(module: str, variant: str, arguments: Sequence[Any]) -> Callable[..., int]:
    try:
        llvm = import_module("llvmlite.binding")
        versions = [importlib.metadata.version(name) for name in ("numba", "llvmlite")]
    except (ModuleNotFoundError, OSError) as error:
        raise TidegaugeError(
            f"the comparison needs Numba, which can't be imported ({error})", "install 'tidegauge[collector]'"
        ) from error
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    key = hashlib.sha256()
    for file in (f"{module}.py", *_PARTS):
        key.update((Path(__file__).parent / file).read_bytes())
    for part in (*versions, llvm.get_process_triple(), llvm.get_host_cpu_name(), features, variant):
        key.update(b"\0" + part.encode())
    name = f"{module}-{variant}-{key.hexdigest()[:32]}.o"
    folder = cache_folder(os.environ)
    code = read(folder / name) if folder is not None else None
    if code is None:
        code = _compile(module, variant)
        if folder is not None:
            keep(folder / name, code)
    return _load(llvm, code, symbol(module, variant), arguments)


def target(llvm: Any) -> Any:
    """This processor, as LLVM's target."""
    triple, features = llvm.get_process_triple(), llvm.get_host_cpu_features().flatten()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, codemodel="jitdefault", jit=True
    )


def symbol(module: str, variant: str) -> str:
    """The name of the function in the object code."""
    return f"tidegauge_{module}_{variant}"


def _compile(module: str, variant: str) -> bytes:
    """Object code, made by a process of its own: Numba's memory goes with it, and LLVM is told things that hold for a
    whole process."""
    log.info("compiling %s of %s for this processor", module, variant)
    done = subprocess.run([sys.executable, "-m", f"tidegauge.compare.{module}", variant], capture_output=True)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        raise TidegaugeError(
            f"the statistics can't be compiled for this processor: {said[0]}",
            "install the releases of numba and llvmlite in the lock file",
        )
    return done.stdout


def _load(llvm: Any, code: bytes, name: str, arguments: Sequence[Any]) -> Callable[..., int]:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target(llvm))
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(name)
    _engines.append(engine)
    return ctypes.CFUNCTYPE(ctypes.c_int32, *arguments)(address)


# --- what is kept ------------------------------------------------------------------------------------------------


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Where code is kept, made if need be; None where no folder can be written."""
    names = [environment.get(name, "").split(":")[0] for name in ("NUMBA_CACHE_DIR", "CACHE_DIRECTORY")]
    places = [Path(name) for name in names if name]
    if environment.get("XDG_CACHE_HOME"):
        places.append(Path(environment["XDG_CACHE_HOME"]) / "tidegauge")
    elif environment.get("HOME"):
        places.append(Path(environment["HOME"]) / ".cache" / "tidegauge")
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if os.access(place, os.W_OK | os.X_OK) and _trusted(place.stat()):
            return place
    return None


def _trusted(status: os.stat_result) -> bool:
    """Whether nobody but this user can have written it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def read(path: Path) -> bytes | None:
    """The object code of a file; None where there is none, it is damaged, or another user could have written it."""
    try:
        with path.open("rb") as file:
            if not _trusted(os.fstat(file.fileno())):
                return None
            content = file.read()
    except OSError:
        return None
    head = len(_MAGIC) + hashlib.sha256().digest_size
    code = content[head:]
    return code if content[:head] == _MAGIC + hashlib.sha256(code).digest() else None


def keep(path: Path, code: bytes) -> None:
    """Write the file at once or not at all; a folder that is full costs only the next process its time."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(_MAGIC + hashlib.sha256(code).digest() + code)
        Path(file.name).replace(path)
    except OSError as error:
        log.info("the compiled statistics are not kept in %s: %s", path.parent, error)
