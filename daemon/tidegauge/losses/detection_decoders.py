"""From the raw outputs of a detector to boxes, for the forms that models for TIDL have. Both sides use this code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tidegauge.losses.boxes import Detections, Floats, suppress
from tidegauge.losses.elements import Array, ShapeMismatch
from tidegauge.profile import Output

#: Scores of SSD boxes are regressed with these variances (Liu et al., "SSD", ECCV 2016, as in Caffe's code).
CENTRE_VARIANCE, SIZE_VARIANCE = 0.1, 0.2
#: A size grows by e to this at most: what a broken output says more is no box.
LARGEST_EXPONENT = 10.0

Decoder = Callable[[Sequence[Array], Output], Detections]


def decode(outputs: Sequence[Array], output: Output) -> Detections:
    """Boxes with scores from half of `output.threshold` on, after suppression. Raises `ShapeMismatch`.

    `outputs`: the watched output, then those of `output.also`.
    """
    found = DECODERS[output.decoder](outputs, output).above(output.threshold / 2)
    return found if output.decoder == "tidl" else suppress(found, output.overlap)


def tidl(outputs: Sequence[Array], output: Output) -> Detections:
    """`dets` … × n × 5 (left, top, right, bottom, score) with `labels` … × n; or one output with more columns.

    Six columns end with the label; seven are Caffe's (picture, label, score, left, top, right, bottom). Suppression has
    been done by TIDL's detection layer; rows of score 0 or below and label −1 are padding.
    """
    rows = _rows(outputs[0], None)
    columns = rows.shape[1]
    if columns == 7 and len(outputs) == 1:
        boxes, scores, labels = rows[:, 3:7], rows[:, 2], rows[:, 1]
    elif columns == 6 and len(outputs) == 1:
        boxes, scores, labels = rows[:, :4], rows[:, 4], rows[:, 5]
    elif columns == 5 and len(outputs) <= 2:
        boxes, scores = rows[:, :4], rows[:, 4]
        labels = np.zeros(len(rows)) if len(outputs) == 1 else outputs[1].reshape(-1).astype(np.float64)
    else:
        raise _unlike(outputs, "dets of 5 columns with labels, or one output of 6 or 7 columns")
    if labels.size != scores.size:
        raise _unlike(outputs, "as many labels as dets")
    found = Detections(boxes, scores, np.rint(labels).astype(np.int64))
    return found.chosen((found.scores > 0) & (found.labels >= 0))


def ssd(outputs: Sequence[Array], output: Output) -> Detections:
    """Boxes … × n × 4 and class scores … × n × classes, class 0 the background.

    With a third output, the priors … × n × 4 (centre x, centre y, width, height), boxes are relative to them; without,
    boxes are corners.
    """
    if len(outputs) not in (2, 3):
        raise _unlike(outputs, "boxes, class scores and, if boxes are relative, priors")
    boxes, scores = _rows(outputs[0], 4), _rows(outputs[1], None)
    if len(boxes) != len(scores) or scores.shape[1] < 2:
        raise _unlike(outputs, "as many scores as boxes, and a background class")
    if output.activation == "softmax":
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores = scores / scores.sum(axis=1, keepdims=True)
    elif output.activation == "sigmoid":
        scores = _sigmoid(scores)
    if len(outputs) == 3:
        priors = _rows(outputs[2], 4)
        if len(priors) != len(boxes):
            raise _unlike(outputs, "as many priors as boxes")
        centre = priors[:, :2] + CENTRE_VARIANCE * boxes[:, :2] * priors[:, 2:]
        size = priors[:, 2:] * np.exp(np.minimum(SIZE_VARIANCE * boxes[:, 2:], LARGEST_EXPONENT))
        boxes = _corners(centre, size)
    labels = 1 + scores[:, 1:].argmax(axis=1)
    return Detections(boxes, scores[np.arange(len(scores)), labels], labels.astype(np.int64))


def yolov5(outputs: Sequence[Array], output: Output) -> Detections:
    """… × n × (5 + classes): centre x, centre y, width, height in pixels, objectness, class scores."""
    if len(outputs) != 1:
        raise _unlike(outputs, "one output of 5 + classes columns")
    rows = _rows(outputs[0], None)
    if rows.shape[1] < 6:
        raise _unlike(outputs, "one output of 5 + classes columns")
    scores = _sigmoid(rows[:, 4:]) if output.activation == "sigmoid" else rows[:, 4:]
    labels = scores[:, 1:].argmax(axis=1)
    best = scores[:, 0] * scores[np.arange(len(rows)), 1 + labels]
    return Detections(_corners(rows[:, :2], rows[:, 2:4]), best, labels.astype(np.int64))


def yolox(outputs: Sequence[Array], output: Output) -> Detections:
    """As `yolov5`, but centres are offsets from grid cells and sizes are logarithms, in units of the stride.

    Cells of stride 8, then 16 and 32, row by row, of an input of `output.width` × `output.height` (Ge et al., "YOLOX",
    arXiv 2107.08430; the form exported without `decode_in_inference`).
    """
    if len(outputs) != 1:
        raise _unlike(outputs, "one output of 5 + classes columns")
    rows = _rows(outputs[0], None).copy()
    cells, strides = _grid(output.width, output.height)
    if rows.shape[0] != len(cells) or rows.shape[1] < 6:
        raise _unlike(outputs, f"{len(cells)} rows of 5 + classes columns, for `width` and `height` of the profile")
    rows[:, :2] = (rows[:, :2] + cells) * strides
    rows[:, 2:4] = np.exp(np.minimum(rows[:, 2:4], LARGEST_EXPONENT)) * strides
    return yolov5([rows], output)


DECODERS: dict[str, Decoder] = {"tidl": tidl, "ssd": ssd, "yolov5": yolov5, "yolox": yolox}


def _grid(width: int, height: int) -> tuple[Floats, Floats]:
    cells, strides = [], []
    for stride in (8, 16, 32):
        rows, columns = np.mgrid[: height // stride, : width // stride]
        cells.append(np.stack([columns.ravel(), rows.ravel()], axis=1).astype(np.float64))
        strides.append(np.full((cells[-1].shape[0], 1), float(stride)))
    return np.concatenate(cells), np.concatenate(strides)


def _corners(centre: Floats, size: Floats) -> Floats:
    return np.concatenate([centre - size / 2, centre + size / 2], axis=1)


def _sigmoid(values: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(values / 2)))


def _rows(array: Array, columns: int | None) -> Floats:
    """The last two dimensions of one picture's output; leading ones must be 1."""
    if array.ndim < 2 or array.size == 0 or any(length != 1 for length in array.shape[:-2]):
        raise _unlike([array], "rows of one picture")
    if columns is not None and array.shape[-1] != columns:
        raise _unlike([array], f"rows of {columns} columns")
    return array.reshape(array.shape[-2:]).astype(np.float64)


def _unlike(outputs: Sequence[Array], expected: str) -> ShapeMismatch:
    shapes = ", ".join(str(list(array.shape)) for array in outputs)
    return ShapeMismatch(
        f"the detector's output has shape {shapes}; the decoder expects {expected}",
        "correct `output.decoder` or `output.also` of the profile",
    )
