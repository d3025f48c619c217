"""What passes between an application and the agent: packets on a Unix socket, and one shared memory. Pure.

The same as `tidegauge_tap.h` says in C; docs/tap.md is the specification. Everything is little-endian. Only Python's
standard library is imported: an application's Python may have nothing else.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from math import prod
from typing import NamedTuple

VERSION = 1
MAGIC = 0x50544754  # "TGTP"
MAX_PACKET = 16 * 1024
MAX_TENSORS, MAX_RANK = 16, 8
#: Inputs and outputs of one frame together: more than any network of an AM62A has.
MAX_SLOT = 256 * 1024 * 1024
ALIGNMENT = 64

#: kind, number, two numbers whose meaning the kind says.
HEAD = struct.Struct("<IIdd")
HELLO = struct.Struct("<I64s")
OPENED = struct.Struct("<IIII64s64s")
TENSOR = struct.Struct("<128sII8Q")

#: Element types by the numbers of TIDL's `eTIDL_ElementType` (itidl_ti.h), so far as these have one.
ELEMENT_TYPES = {0: "uint8", 1: "int8", 2: "uint16", 3: "int16", 5: "int32", 6: "float32", 8: "int64"}
ELEMENT_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}
ELEMENT_BYTES = {"uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "int32": 4, "float32": 4, "int64": 8}


class Kind(IntEnum):
    """Of a packet. The first six come from the application."""

    HELLO = 1
    OPENED = 2
    GIVEN = 3
    RAN = 4
    CLOSED = 5
    FAILED = 6
    RUN = 16
    PAUSE = 17
    OPEN = 18
    REFUSED = 19


class Flag(IntEnum):
    """What an application can be asked for, in HELLO, where `WAITS` says that it asks before it opens a session; and
    that its accelerator is an emulated one, in OPENED.
    """

    RUNS = 1
    PAUSES = 2
    WAITS = 4
    VIRTUAL = 1


class Word(IntEnum):
    """Index of a 32-bit word at the head of the shared memory. `WANTED` and `CALLS` are the agent's, on a cache line of
    their own; the counters are the application's, and begin again at 0 beyond 2³² − 1.
    """

    MAGIC = 0
    VERSION = 1
    WANTED = 16
    CALLS = 17
    FRAMES = 32
    DROPPED = 33
    MICROSECONDS = 34


WORDS = 64
HEADER_BYTES = 4 * WORDS


class WireError(ValueError):
    """A packet that the other side can't have meant."""


class Tensor(NamedTuple):
    """Name, shape and NumPy element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]


class Session(NamedTuple):
    """What OPENED tells. `runtime`, `provider`: the application's own words for what computes."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    runtime: str
    provider: str
    virtual: bool


class Places(NamedTuple):
    """Offsets in the shared memory, each a multiple of 64: inputs and outputs of a frame, and inputs to be run."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    asked: tuple[int, ...]
    nbytes: int


def places(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Places:
    offset = HEADER_BYTES
    found: list[tuple[int, ...]] = []
    for tensors in (inputs, outputs, inputs):
        group = []
        for tensor in tensors:
            group.append(offset)
            offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        found.append(tuple(group))
    return Places(found[0], found[1], found[2], offset)


def packet(kind: Kind, number: int = 0, a: float = 0.0, b: float = 0.0, payload: bytes = b"") -> bytes:
    return HEAD.pack(kind, number, a, b) + payload


def head(data: bytes) -> tuple[Kind, int, float, float, bytes]:
    """Kind, number, both numbers, and what follows them. Raises WireError."""
    if not HEAD.size <= len(data) <= MAX_PACKET:
        raise WireError(f"a packet of {len(data)} bytes")
    kind, number, a, b = HEAD.unpack_from(data)
    try:
        return Kind(kind), number, a, b, data[HEAD.size :]
    except ValueError:
        raise WireError(f"a packet of the unknown kind {kind}") from None


def hello(name: str, flags: int, waiting: float = 0.0) -> bytes:
    """`waiting`: seconds that it waits now for the word that a session may be opened, 0 where it does not."""
    return packet(Kind.HELLO, VERSION, waiting, payload=HELLO.pack(flags, _bytes(name, 64)))


def read_hello(payload: bytes) -> tuple[str, int]:
    """Name and flags. Raises WireError."""
    if len(payload) != HELLO.size:
        raise WireError(f"a greeting of {len(payload)} bytes")
    flags, name = HELLO.unpack(payload)
    return _text(name), flags


def opened(session: Session) -> bytes:
    tensors = b"".join(
        TENSOR.pack(
            _bytes(tensor.name, 128),
            ELEMENT_NUMBERS[tensor.dtype],
            len(tensor.shape),
            *tensor.shape,
            *(0,) * (MAX_RANK - len(tensor.shape)),
        )
        for tensor in (*session.inputs, *session.outputs)
    )
    counts = (len(session.inputs), len(session.outputs), Flag.VIRTUAL if session.virtual else 0, 0)
    words = (_bytes(session.runtime, 64), _bytes(session.provider, 64))
    return packet(Kind.OPENED, payload=OPENED.pack(*counts, *words) + tensors)


def read_opened(payload: bytes) -> Session:
    """Raises WireError, also for tensors that are too many or too large."""
    if len(payload) < OPENED.size:
        raise WireError(f"a session told in {len(payload)} bytes")
    inputs, outputs, flags, _, runtime, provider = OPENED.unpack_from(payload)
    count = inputs + outputs
    if not (inputs and outputs and count <= MAX_TENSORS) or len(payload) != OPENED.size + count * TENSOR.size:
        raise WireError(f"{inputs} inputs and {outputs} outputs in {len(payload)} bytes")
    tensors = tuple(_tensor(payload[OPENED.size + index * TENSOR.size :]) for index in range(count))
    session = Session(tensors[:inputs], tensors[inputs:], _text(runtime), _text(provider), bool(flags & Flag.VIRTUAL))
    for group in (session.inputs, session.outputs):
        if len({tensor.name for tensor in group}) != len(group):
            raise WireError("two tensors of one name")
    if places(session.inputs, session.outputs).nbytes > MAX_SLOT:
        raise WireError(f"tensors of more than {MAX_SLOT} bytes")
    return session


def check(tensors: tuple[Tensor, ...]) -> None:
    """Raise WireError for what `opened` could not tell."""
    for tensor in tensors:
        if tensor.dtype not in ELEMENT_NUMBERS:
            raise WireError(f"tensor {tensor.name}: element type {tensor.dtype} is not one of {list(ELEMENT_NUMBERS)}")
        if not 1 <= len(tensor.shape) <= MAX_RANK or min(tensor.shape) < 1:
            raise WireError(f"tensor {tensor.name}: shape {tensor.shape} is not one to {MAX_RANK} positive dimensions")
        if not 1 <= len(tensor.name.encode()) < 128:
            raise WireError(f"tensor name {tensor.name!r} is not 1 to 127 bytes long")


def _tensor(data: bytes) -> Tensor:
    name, number, rank, *shape = TENSOR.unpack_from(data)
    if number not in ELEMENT_TYPES or not 1 <= rank <= MAX_RANK:
        raise WireError(f"a tensor of element type {number} and rank {rank}")
    tensor = Tensor(_text(name), tuple(shape[:rank]), ELEMENT_TYPES[number])
    check((tensor,))
    return tensor


def _bytes(text: str, size: int) -> bytes:
    return text.encode()[: size - 1]


def _text(data: bytes) -> str:
    try:
        return data.split(b"\0", 1)[0].decode()
    except UnicodeDecodeError as error:
        raise WireError(f"a name that is not UTF-8 ({error})") from None
