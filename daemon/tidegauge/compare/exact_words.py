"""A bit-exact comparison in words, the same in the terminal and in the page."""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.compare.exact_types import ExactCounts, ExactTensor, Spread

#: What TIDL appends to the name of a graph input that it has turned into codes.
NET_FORMAT = "_netFormat"
STATUSES = {
    "exact": "exact",
    "off_by_one": "±1",
    "larger": "larger",
    "size": "sizes differ",
    "truncated": "truncated",
    "missing": "missing",
    "unexpected": "unexpected",
    "duplicate": "two files",
    "not_dumped": "not dumped",
}
ORIGINS = {"none": "", "origin": "starts here", "inherits": "inherited", "undecided": "undecided"}


def label(tensor: ExactTensor) -> str:
    """A tensor's name, or its data id where no table names it."""
    return tensor.name or f"data id {tensor.data_id}"


def is_input(tensor: ExactTensor) -> bool:
    """The input itself, or the input as codes: the same input tensor gives the same codes on both sides."""
    return tensor.layer_kind == "TIDL_DataLayer" or tensor.inputs == () or tensor.name.endswith(NET_FORMAT)


def place(tensor: ExactTensor) -> str:
    """Where the differing elements are; an axis that they fill is not named."""
    axes = (("channel", tensor.channels), ("row", tensor.rows), ("column", tensor.columns))
    parts = [_axis(word, spread) for word, spread in axes if spread is not None and 0 < spread.touched < spread.size]
    return ", ".join(parts) or "everywhere"


def _axis(word: str, spread: Spread) -> str:
    if spread.touched == 1:
        return f"{word} {spread.first} of {spread.size}"
    if spread.touched == spread.last - spread.first + 1:
        return f"{word}s {spread.first} to {spread.last} of {spread.size}"
    return f"{spread.touched} of {spread.size} {word}s from {spread.first} to {spread.last}"


def amount(tensor: ExactTensor) -> str:
    """How many elements differ, and by how much."""
    unit = ("code", "codes") if tensor.kind == "y" else ("float step", "float steps")
    wrong = tensor.off_by_one + tensor.off_by_more
    return (
        f"{wrong} of {tensor.count} elements differ ({100 * wrong / tensor.count:.3g} %), "
        f"by at most {tensor.largest} {unit[tensor.largest != 1]}"
    )


def exact_sentence(tensors: Sequence[ExactTensor], first: int | None, counts: ExactCounts) -> str:
    """The verdict."""
    thin = ""
    if counts.share < counts.minimum:
        thin = f"Only {counts.compared} of {counts.total} traces could be compared, too few for a verdict. "
    differing = counts.off_by_one + counts.larger
    if not differing:
        gaps = f"; {counts.total - counts.compared} could not be compared" if counts.total > counts.compared else ""
        return f"{thin}All {counts.exact} compared tensors are equal bit by bit{gaps}."
    kinds = f"{counts.exact} tensors are equal, {counts.off_by_one} differ by one code, {counts.larger} by more"
    if first is None:
        return f"{thin}{kinds}."
    tensor = tensors[first]
    others = [t for i, t in enumerate(tensors) if t.origin == "origin" and i != first and t.data_id != tensor.data_id]
    more = f" {len(others)} more start by themselves: {', '.join(label(t) for t in others[:3])}." if others else ""
    kind = f" ({tensor.layer_kind})" if tensor.layer_kind else ""
    if tensor.origin == "undecided":
        head = f"The first difference seen is at {label(tensor)}{kind}, but not all that it reads was traced"
    elif is_input(tensor):
        head = f"The two runs part at the input {label(tensor)}{kind}: they were fed different inputs"
    else:
        head = f"The two runs part at {label(tensor)}{kind}, whose inputs are equal"
    return f"{thin}{head}: {amount(tensor)}, {place(tensor)}; {kinds}.{more}"
