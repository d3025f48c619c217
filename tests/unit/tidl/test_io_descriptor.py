from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.tidl import elements, net_header
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.io_descriptor import SIZE, IoDescriptor, IoInput, IoOutput, pack, parse


def test_the_real_file(real_io: bytes) -> None:
    descriptor = parse(real_io)
    (only,) = descriptor.inputs
    assert (only.name, only.dims, only.dtype, only.raw_dtype) == ("input", (1, 1, 1, 3, 640, 640), "float32", "float32")
    assert (only.channel_pitch, only.size, only.scale, only.zero_point, only.data_id) == (409600, 1638400, 1.0, 0, 0)
    assert [(o.name, o.shape, o.data_id, o.pads[4], o.size) for o in descriptor.outputs] == [
        ("dets", (1, 200, 5), 118, 1, 2000),
        ("labels", (1, 200), 119, 2, 600),
    ]


def test_the_real_file_is_written_back_to_the_byte(real_io: bytes) -> None:
    assert pack(parse(real_io)) == real_io


small = st.integers(0, 5000)
integers = st.integers(-(2**31), 2**31 - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=120)
scales = st.floats(width=32, allow_nan=False, allow_infinity=False)
types = st.sampled_from([element.dtype for element in elements.ElementType])
common = {
    "name": names,
    "data_id": integers,
    "dims": st.tuples(small, small, small, small, small, small),
    "dtype": types,
    "scale": scales,
    "zero_point": integers,
    "pads": st.tuples(integers, integers, integers, integers, integers),
    "channel_pitch": integers,
    "size": integers,
    "layout": st.integers(0, 1),
}
inputs = st.builds(
    IoInput, raw_dtype=types, data_format=small, resize_type=small, resize=st.tuples(small, small), **common
)
outputs = st.builds(IoOutput, valid_dims=st.integers(0, 6), **common)
descriptors = st.builds(
    IoDescriptor,
    inputs=st.lists(inputs, max_size=3).map(tuple),
    outputs=st.lists(outputs, max_size=3).map(tuple),
    cores=small,
    virtual_cores=small,
    super_batches=small,
    inference_mode=small,
)


@settings(max_examples=50, deadline=None)
@given(descriptors)
def test_what_is_packed_is_parsed_back(descriptor: IoDescriptor) -> None:
    data = pack(descriptor)
    assert len(data) == SIZE
    assert parse(data) == descriptor


@pytest.mark.parametrize(("size", "release"), [(93976, "9.2"), (37256, "8.6"), (378392, "11.2")])
def test_another_release_is_named(size: int, release: str) -> None:
    with pytest.raises(FormatError, match=release):
        parse(bytes(size))


def test_damage_is_named(real_io: bytes) -> None:
    damages = {
        "inputs": (0, struct.pack("<i", 33)),
        "outputs": (4, struct.pack("<i", -1)),
        "element type": (24 + 17 * 128, struct.pack("<i", 77)),
        "negative": (24 + 4 * 128, struct.pack("<i", -5)),
        "scale": (24 + 21 * 128, struct.pack("<f", float("nan"))),
        "no end": (24 + 22 * 128, b"n" * 512),
        "not text": (24 + 22 * 128, b"\xff\xfe"),
    }
    for word, (offset, patch) in damages.items():
        with pytest.raises(FormatError, match=word):
            parse(real_io[:offset] + patch + real_io[offset + len(patch) :])


def test_every_field_lies_where_ti_s_struct_has_it() -> None:
    """Array by array, in the order of sTIDL_IOBufDesc_t."""
    item = IoInput(
        "in", 121, (110, 108, 107, 106, 105, 104), "int16", 1.5, 118, (111, 112, 113, 114, 115), 109, 122, 120,
        "uint16", 100, 101, (102, 103),
    )  # fmt: skip
    data = pack(IoDescriptor((item,), (), 2, 3, 4, 5))
    assert struct.unpack_from("<6i", data) == (1, 0, 2, 3, 4, 5)
    fields = [struct.unpack_from("<i", data, 24 + 128 * index)[0] for index in range(21)]
    assert fields == [*range(100, 107), 107, 108, 109, 110, *range(111, 116), 2, 3, 118, 120, 121]
    out = IoOutput(
        "out", 212, (206, 203, 202, 204, 201, 200), "int8", 2.5, 213, (207, 208, 209, 210, 211), 205, 215, 214, 6
    )
    data = pack(IoDescriptor((), (out,)))
    start = 24 + 21 * 128 + 128 + 32 * 512 + 128
    fields = [struct.unpack_from("<i", data, start + 512 * index)[0] for index in range(14)]
    assert fields == [200, 201, 202, 203, 204, 205, 206, *range(207, 212), 1, 212]
    tail = start + 14 * 512 + 128 * 512
    assert struct.unpack_from("<f", data, tail)[0] == 2.5
    assert [struct.unpack_from("<i", data, tail + 512 * index)[0] for index in (1, 2, 3, 4)] == [213, 214, 215, 6]


def test_what_has_no_room_is_refused() -> None:
    item = IoInput("a", 0, (1, 1, 1, 1, 1, 1), "int8", 1.0, 0)
    replace = msgspec.structs.replace
    for bad in (
        replace(item, name="n" * 512),
        replace(item, name="a\0b"),
        replace(item, name="\ud800"),
        replace(item, size=2**31),
        replace(item, dtype="float64"),
        replace(item, scale=float("inf")),
        replace(item, scale=1e39),
    ):
        with pytest.raises(FormatError):
            pack(IoDescriptor((bad,), ()))
    with pytest.raises(FormatError):
        pack(IoDescriptor((item,) * 33, ()))


def test_net_header() -> None:
    header = net_header.parse(net_header.pack(0x20250821) + b"rest")
    assert (header.version, header.device, header.release, header.container) == (0x20250821, 4, "11.1", False)
    assert net_header.parse(bytes.fromhex("01002620") + bytes(4)).release is None
    assert net_header.parse(struct.pack("<II", 0xFF00FF00, 2)).container
    with pytest.raises(FormatError):
        net_header.parse(b"1234567")


@pytest.mark.parametrize(
    ("name", "code", "span"),
    [("TIDL_UnsignedChar", 0, (0, 255)), ("TIDL_SignedShort", 3, (-32768, 32767)), ("TIDL_SinglePrecFloat", 6, None)],
)
def test_element_types(name: str, code: int, span: tuple[int, int] | None) -> None:
    element = elements.from_svg_name(name)
    assert element is not None
    assert element is elements.from_code(code) is elements.from_dtype(element.dtype)
    assert (element.svg_name, element.code_range) == (name, span)
    assert elements.from_code(9) is None
    assert elements.from_code(-1) is None
    assert elements.from_svg_name("TIDL_Half") is None
