from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.tidl import elements, net_header
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.io_descriptor import KNOWN_SIZES, SIZE, IoDescriptor, IoInput, IoOutput, pack, parse
from tidegauge.tidl.io_layout import LAYOUTS, computed_size


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


@pytest.mark.parametrize(("size", "release"), [(37256, "8.6"), (37272, "9.0"), (93976, "9.2"), (378392, "11.2")])
@settings(max_examples=15, deadline=None)
@given(descriptor=descriptors)
def test_other_releases_are_read_and_lose_only_what_they_do_not_hold(
    size: int, release: str, descriptor: IoDescriptor
) -> None:
    known = msgspec.structs.replace(descriptor, file_size=size, cores=2, virtual_cores=2, super_batches=1)
    known = msgspec.structs.replace(known, inference_mode=1)
    data = pack(known)
    assert len(data) == size
    parsed = parse(data)
    assert parsed.release == release
    assert parsed == msgspec.structs.replace(
        known,
        inputs=tuple(_as_of(item, size) for item in known.inputs),
        outputs=tuple(_as_of(item, size) for item in known.outputs),
        **({"cores": 1, "virtual_cores": 1, "inference_mode": 0} if size == 37256 else {}),
    )


def _as_of(item: Any, size: int) -> Any:
    four = size in (37256, 37272)
    dims = (item.dims[0], 1, 1, *item.dims[3:]) if four else item.dims
    kept = msgspec.structs.replace(item, dims=dims, size=item.size if size > 93976 else None)
    return msgspec.structs.replace(kept, valid_dims=None) if four and isinstance(item, IoOutput) else kept


def test_places_in_the_other_layouts_are_those_of_ti_s_headers() -> None:
    """Offsets counted by hand from the published headers: 8.6, 9.2, and 11.2 with four cores."""
    item = IoInput("in", 7, (1, 1, 1, 3, 5, 9), "int8", 2.0, 0)
    out = IoOutput("out", 8, (1, 1, 1, 4, 6, 10), "int8", 4.0, 0, valid_dims=4)
    old = pack(IoDescriptor((item,), (out,), file_size=37256))
    assert struct.unpack_from("<i", old, 8 + 4 * 128)[0] == 9, "inWidth, behind four arrays"
    assert struct.unpack_from("<i", old, 8 + 7 * 128)[0] == 0, "inChannelPitch follows inNumChannels: no inDIM2"
    assert old[8 + 20 * 128 :].startswith(b"in\0")
    assert struct.unpack_from("<i", old, 8 + 20 * 128 + 32 * 512)[0] == 10, "outWidth"
    middle = pack(IoDescriptor((item,), (out,), file_size=93976))
    assert struct.unpack_from("<i", middle, 24 + 22 * 128 + 32 * 512)[0] == 10, "outWidth: no inBufSize before it"
    assert struct.unpack_from("<i", middle, 93976 - 512)[0] == 4, "numValidTensorDims ends the struct"
    four = pack(IoDescriptor((item,), (out,), 4, 4, file_size=378392))
    assert struct.unpack_from("<i", four, 24 + 4 * 4 * 128)[0] == 9, "arrays of 4 x 32"
    assert four[24 + 4 * 22 * 128 :].startswith(b"in\0")


def test_more_tensors_than_one_core_has_room_for() -> None:
    item = IoInput("in", 7, (1, 1, 1, 3, 5, 9), "int8", 2.0, 0, size=1)
    many = IoDescriptor((item,) * 128, (), 4, 4, file_size=378392)
    assert parse(pack(many)) == many


def test_the_one_layout_without_a_public_header_is_not_guessed() -> None:
    data = bytearray(pack(IoDescriptor((), (), file_size=37272)))
    assert parse(bytes(data)).release == "9.0"
    for offset, value in ((8, 0), (12, 99), (16, 0), (20, 3)):
        broken = bytearray(data)
        struct.pack_into("<i", broken, offset, value)
        with pytest.raises(FormatError, match=r"release 9\.0 .37272 bytes. is not public.*tools 9\.2 or later"):
            parse(bytes(broken))


def test_an_unknown_size_names_the_known_ones(real_io: bytes) -> None:
    for size in {*range(200), *range(37250, 37280), *range(93970, 94620), 378391, 400000} - set(KNOWN_SIZES):
        with pytest.raises(FormatError, match=r"94616 .10\.0 to 11\.1"):
            parse(real_io.ljust(size, b"\0")[:size])


def test_every_layout_s_size_is_the_sum_of_its_fields() -> None:
    assert {layout.size: computed_size(layout) for layout in LAYOUTS.values()} == {size: size for size in KNOWN_SIZES}


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
