"""What reads bytes from elsewhere, each with good inputs to begin from. Anything but the named error is a finding."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import msgspec
import zstandard
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tidegauge.bundles import signature
from tidegauge.bundles.archive import import_bundle
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Blob, Cause, Inventory, Manifest, StoredFile, StoredTensor, Trace
from tidegauge.bundles.reader import decode_blob, decode_manifest
from tidegauge.bundles.sealing import Sealer, unseal
from tidegauge.clocks import Stamp, Wall
from tidegauge.link.command_wire import CommandAnswer, Order, Signed
from tidegauge.link.gate import Memory, Rules, judge
from tidegauge.link.wire import AlarmChange, FileResponse, Init, Result, Status, decode
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.spool.records import HistoryRecord
from tidegauge.tensors import TensorSpec
from tidegauge.tidl import (
    artifacts,
    io_descriptor,
    layer_info,
    net_header,
    netlog,
    remote_log,
    tensor_table,
    trace_names,
)
from tidegauge.tidl.errors import FormatError

Reader = Callable[[bytes], object]
KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))
CONTENT = b"the content of a blob" * 3
WORDS = (
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"-1",
    b"1e999",
    b"99999999999999999999",
    b"\\ud800",
    b"..",
    b"/",
)


@dataclass(frozen=True)
class Target:
    """`read` raises one of `allowed`, or returns."""

    read: Reader
    allowed: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]


def _manifest() -> tuple[Manifest, dict[str, bytes]]:
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> Blob:
        sha256 = hashlib.sha256(data).hexdigest()
        blobs[sha256] = data
        return Blob(sha256, len(data), len(data), "raw")

    file = "C7x_1_tidl_trace_subgraph_0_0007_0001_0001_00001_00004_00004x00004.y"
    manifest = Manifest(
        bundle_id="bundle-0001",
        device="cam-1",
        virtual=True,
        created=Stamp(1.7e9, "boot", 12.0),
        cause=Cause("loss", "accelerator", ("scale_error",), {"loss": 0.9}, "the loss has risen"),
        profile=Profile("m", "onnx", "m.onnx", "a", Preprocess(8, 8), Output("y", "image", 0.1)),
        inventory=Inventory({"net.bin": "ab" * 32}, "cd" * 32, {"sdk": "11.1"}, {}),
        options={},
        benchmark={"ts:run_start": 1},
        inputs=(StoredTensor(TensorSpec("x", (1, 3, 2, 2), "uint8"), blob(bytes(12))),),
        device_outputs=(),
        reference_outputs=(),
        traced_outputs=(),
        tracing_changed_output=False,
        errors=(),
        loss=0.9,
        traces=(Trace(file, "s", 7, "y", (1, 1, 1, 1, 4, 4), "int8", 16, "ab" * 32, "cd", None, blob(bytes(16))),),
        logs=(),
        model=StoredFile("m.onnx", blob(b"the model")),
        artifacts=(),
    )
    return manifest, blobs


def _archive() -> bytes:
    manifest, blobs = _manifest()
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("manifest.json", msgspec.json.encode(manifest))
        for name, data in blobs.items():
            archive.writestr(f"blobs/sha256/{name}", data)
    return out.getvalue()


def _sealed() -> bytes:
    out = bytearray()
    sealer = Sealer(KEY.public_key().public_bytes_raw().hex(), out.extend)
    sealer.write(CONTENT)
    sealer.finish()
    return bytes(out)


def _import(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "a.tidebundle"
        file.write_bytes(data)
        return import_bundle(file, Path(work) / "bundle", 1 << 20)


def _checked(data: bytes) -> object:
    return signature.check(data, decode_manifest(data, "it"))


def _blob(data: bytes) -> object:
    return decode_blob(data, Blob(hashlib.sha256(data).hexdigest(), len(data), len(CONTENT), "zstd"))


def _gate(data: bytes) -> object:
    rules: Rules[object] = Rules("cam-1", ("ab" * 32,), lambda *_: True, ("Pull",), ("Pull",), msgspec.json.decode)
    return judge(data, rules, Memory(), Wall(1000.0))


def _order() -> bytes:
    order = Order("cam-1", "c-1", 1, 900.0, 1100.0, msgspec.Raw(b'{"type":"Pull","bundle":"bundle-0001"}'))
    return msgspec.json.encode(Signed(msgspec.json.encode(order), "ab" * 32, b"s" * 64))


def _text(parser: Callable[[str], object]) -> Reader:
    return lambda data: parser(data.decode("utf-8", "replace"))


def _wire(kind: type[msgspec.Struct]) -> Reader:
    return lambda data: decode(kind, data)


_WIRE: dict[str, tuple[type[msgspec.Struct], bytes]] = {
    "init": (Init, b'{"name":"n","size":1,"checksum":"%s"}' % (b"a" * 64)),
    "response": (FileResponse, b'{"file_id":"%s","vsn":"0.1","reason_code":0,"missing":[[0,5]]}' % (b"a" * 64)),
    "status": (Status, b'{"state":"online","session":1}'),
    "alarm": (AlarmChange, b'{"raised":true,"detector":"loss","verdict":"data","message":"m"}'),
    "result": (Result, b'{"frame_id":1,"captured_wall":1.0,"model":"m","summary":{"best":0.5}}'),
    "answer": (CommandAnswer, b'{"id":"i","device":"d","state":"done","command":"%s"}' % (b"a" * 64)),
    "record": (HistoryRecord, b'{"type":"history","version":1}'),
}
_TEXTS: dict[str, tuple[Callable[[str], object], str]] = {
    "svg": (
        tensor_table.from_svg,
        "<svg><title>Layer 0: TIDL_ConvolutionLayer &quot;a&quot;\n &#160;Outputs:\n [1] numDim=6 dims=[1,1,1,3,8,8]"
        " &#160;elementType=TIDL_SignedChar\n min/maxTensorValue=(-1.0,2.0)\n tensorScale=2.0\n</title></svg>",
    ),
    "proto": (
        tensor_table.from_quant_proto,
        'num_layers: 1\nlayers { layer_name: "a" bit_depth: 1 outputs { min: -1 scale: 2.5e1 element_type: 1 } }',
    ),
    "dump_log": (tensor_table.from_remote_log, "[C7x_1 ]   4.75 s:   3   879.65   0.0   39.1 2\n"),
    "netlog": (
        netlog.parse,
        "Num of Layer Detected : 1\n----\n"
        "  2|TIDL_ConvolutionLayer |1 | 0| 1| 1| 1 x x | 2 | 1 1 1 3 8 8 | 1 1 1 1 4 4 | 3 |\n",
    ),
    "layer_info": (layer_info.parse, "0 0 input \n1 1 a b \n"),
    "allowed_nodes": (artifacts.parse_allowed_nodes, "1\n3\n0\n1\n2\n"),
    "metadata": (
        artifacts.parse_metadata,
        "numGraphNodes=3\n0:subGraphName=s\n0:numInputs=1\n0:numOutputs=1\n0:inDataNames=i\n0:outDataNames=o\n",
    ),
    "log_line": (remote_log.parse, "[C7x_1 ]      4.751024 s:  VX_ZONE_ERROR: text\n"),
    "trace_name": (trace_names.parse, "C7x_1_tidl_trace_s_0_0009_0001_0001_00001_00064_00128x00128.y"),
}


def targets() -> dict[str, Target]:
    """Every reader, by the name of its folder in the corpus."""
    manifest = msgspec.json.encode(_manifest()[0])
    item = io_descriptor.IoInput("a", 0, (1, 1, 1, 1, 1, 1), "int8", 1.0, 0)
    descriptor = io_descriptor.pack(io_descriptor.IoDescriptor((item,), (), file_size=min(io_descriptor.KNOWN_SIZES)))
    frame = zstandard.compress(CONTENT)
    found = {
        "manifest": Target(lambda data: decode_manifest(data, "it"), (BundleError,), (manifest,)),
        "signature": Target(_checked, (BundleError,), (manifest,)),
        "archive": Target(_import, (BundleError,), (_archive(),)),
        "blob": Target(_blob, (BundleError,), (frame, zstandard.ZstdCompressor(write_checksum=True).compress(CONTENT))),
        "sealed": Target(lambda data: unseal(data, KEY), (BundleError,), (_sealed(),)),
        "command": Target(_gate, (), (_order(),)),
        "io_descriptor": Target(io_descriptor.parse, (FormatError,), (descriptor,)),
        "net_header": Target(net_header.parse, (FormatError,), (b"\x19\x07\x24\x20\x04\0\0\0" + bytes(64),)),
    }
    found |= {name: Target(_wire(kind), (msgspec.DecodeError,), (seed,)) for name, (kind, seed) in _WIRE.items()}
    return found | {
        name: Target(_text(read), (FormatError,), (seed.encode(),)) for name, (read, seed) in _TEXTS.items()
    }
