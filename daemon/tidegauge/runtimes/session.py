"""One face for every inference runtime: named tensors in, named tensors out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from numpy.typing import NDArray

from tidegauge.tensors import TensorSpec

Array = NDArray[Any]


class Offload(msgspec.Struct, frozen=True):
    """The proof that the accelerator computed the answer (facts: TIDL falls back to the CPU without an error).

    `provider` as the runtime reports it; `nodes`, the delegated nodes where the runtime tells them, else -1;
    `subgraphs`, the names with a time stamp in `get_TI_benchmark_data()`; `virtual` where the virtual board ran.
    """

    provider: str
    subgraphs: tuple[str, ...]
    nodes: int = -1
    virtual: bool = False


class Session(Protocol):
    """An opened model. Not thread-safe. `close()` frees what the runtime holds; a TIDL session leaks without it."""

    kind: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once. Inputs must match `inputs` in shape and type; raises `RuntimeFault` otherwise."""
        ...

    def benchmark(self) -> dict[str, int]:
        """TI's time stamps of the last run, nanoseconds by key; empty for a CPU session."""
        ...

    def offload(self) -> Offload | None:
        """The proof of offload, after at least one run; None for a CPU session. Raises `NotOffloaded`."""
        ...

    def close(self) -> None: ...
