"""Which fields `*_tidl_io_1.bin` has in which release, and in what order: five layouts of sTIDL_IOBufDesc_t.

Sources: TI's itidl_ti.h of SDK 8.6 (2 leading words, 32 outputs, four dimensions) and of 9.2 (net version 0x20240401:
6 leading words, 128 outputs, six dimensions, no buffer sizes); itidl_io.h of c7x-mma-tidl (arrays for 4 cores on every
SoC, TIDL_IO_MAX_NUM_CORES); real AM62A files of 10.0. Every array is `[cores * 32]` for inputs and `[cores * 128]`
for outputs, so that the tensors of the first core come first. The header file of 9.0 is not public: its 37272 bytes
are those of 8.6 and exactly the four more leading words that 9.2 has; `leading_words` are therefore checked there.
"""

from __future__ import annotations

import msgspec

NAME_BYTES = 512

_INPUT_HEAD = ("data_format", "resize_type", "resize_width", "resize_height", "width", "height", "channels")
_INPUT_TAIL = (
    *("channel_pitch", "batch", "pad_left", "pad_top", "pad_right", "pad_bottom", "pad_channel"),
    *("raw_element", "element", "zero_point", "layout", "data_id"),
)
_OUTPUT_TAIL = (
    *("channels", "channel_pitch", "batch"),
    *("pad_left", "pad_top", "pad_right", "pad_bottom", "pad_channel", "element", "data_id"),
)
_SIX = ("dim2", "dim1")


class Layout(msgspec.Struct, frozen=True):
    """One release's struct. `inputs`, `outputs`: places in each array. The field tuples are in the file's order.

    In the file: leading int32 words; int32 arrays of `input_fields`; input scales (float32); input names;
    `input_tail` arrays; arrays of `output_fields`; output names; output scales; `output_tail` arrays.
    """

    size: int
    release: str
    leading_words: int
    inputs: int
    outputs: int
    input_fields: tuple[str, ...]
    input_tail: tuple[str, ...]
    output_fields: tuple[str, ...]
    output_tail: tuple[str, ...]
    cores: int = 1
    header_published: bool = True


def _layout(size: int, release: str, words: int, *, cores: int = 1, six: bool, sizes: bool) -> Layout:
    dims = _SIX if six else ()
    return Layout(
        size=size,
        release=release,
        leading_words=words,
        inputs=32 * cores,
        outputs=(128 if six else 32) * cores,
        input_fields=(*_INPUT_HEAD, *dims, *_INPUT_TAIL),
        input_tail=("size",) if sizes else (),
        output_fields=("width", "height", *dims, *_OUTPUT_TAIL),
        output_tail=("zero_point", "layout", *(("size",) if sizes else ()), *(("valid_dims",) if six else ())),
        cores=cores,
        header_published=size != 37272,
    )


#: By the file's size, which the loader compares with its own struct's.
LAYOUTS = {
    layout.size: layout
    for layout in (
        _layout(37256, "8.6", 2, six=False, sizes=False),
        _layout(37272, "9.0", 6, six=False, sizes=False),
        _layout(93976, "9.2", 6, six=True, sizes=False),
        _layout(94616, "10.0 to 11.1", 6, six=True, sizes=True),
        _layout(378392, "11.2", 6, cores=4, six=True, sizes=True),
    )
}


def computed_size(layout: Layout) -> int:
    """The sum of all fields in bytes: the layout's own proof, equal to `layout.size`."""
    arrays_in = len(layout.input_fields) + 1 + len(layout.input_tail)
    arrays_out = len(layout.output_fields) + 1 + len(layout.output_tail)
    words = layout.leading_words + arrays_in * layout.inputs + arrays_out * layout.outputs
    return 4 * words + NAME_BYTES * (layout.inputs + layout.outputs)
