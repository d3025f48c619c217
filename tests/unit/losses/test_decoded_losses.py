"""Losses of decoded outputs: one number in [0, 1] that says how wrong the product would be."""

from __future__ import annotations

from importlib import metadata

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tidegauge.losses import classification, depth, detection, embedding, keypoints, segmentation
from tidegauge.losses.boxes import Detections, overlaps, suppress
from tidegauge.losses.detection_decoders import decode
from tidegauge.losses.elements import ShapeMismatch
from tidegauge.losses.select import WrongLoss, both_empty, loss_for, outputs_loss, outputs_summary
from tidegauge.losses.symptoms import symptoms
from tidegauge.profile import Output

NAN = np.float32("nan")


def boxes(*rows: tuple[float, float, float, float, float, int]) -> Detections:
    data = np.array(rows, np.float64).reshape(-1, 6)
    return Detections(data[:, :4], data[:, 4], data[:, 5].astype(np.int64))


# Classification


def test_total_variation_moves_before_the_first_class() -> None:
    reference = np.array([[0.6, 0.4, 0.0]])
    assert classification.loss(np.array([[0.5, 0.4, 0.1]]), reference) == pytest.approx(0.1)
    assert classification.top1(np.array([[0.5, 0.4, 0.1]]), reference) == 0
    assert classification.top1(np.array([[0.4, 0.6, 0.0]]), reference) == 1
    assert classification.loss(np.array([[0.0, 0.0, 1.0]]), reference) == 1


def test_an_answer_near_zero_everywhere_is_wrong() -> None:
    """A device whose graph was not verified gives scores near zero, in the same order."""
    reference = np.array([0.9, 0.1])
    assert classification.loss(reference * 1e-3, reference) == pytest.approx(0.999)
    assert classification.loss(reference * 255, reference) == 1


def test_activations() -> None:
    logits = np.array([1.0, 3.0, -2.0])
    assert classification.loss(logits + 7, logits, "softmax") == pytest.approx(0, abs=1e-12)
    assert classification.probabilities(np.array([1e4, 0.0]), "softmax").tolist() == [1, 0]
    assert classification.loss(np.array([0.0, 9.0]), np.array([0.0, -9.0]), "sigmoid") == pytest.approx(1, abs=1e-3)
    assert classification.summary(logits, "softmax")["class"] == 1
    assert classification.loss(np.array([NAN, 1]), np.array([1.0, 0.0])) == 1


def test_a_tie_is_no_other_class() -> None:
    assert classification.top1(np.array([0.5, 0.5]), np.array([0.4, 0.6])) == 0


# Detection


def test_the_same_boxes_in_another_order_are_right() -> None:
    one = boxes((0, 0, 10, 10, 0.9, 1), (20, 20, 40, 40, 0.8, 2))
    other = boxes((20, 20, 40, 40, 0.8, 2), (0, 0, 10, 10, 0.9, 1))
    assert detection.compare(one, other, 0.5) == (0.0, 2, 0, 0)


def test_misplaced_missing_and_spurious() -> None:
    reference = boxes((0, 0, 10, 10, 0.9, 1))
    shifted = detection.compare(boxes((0, 0, 10, 8, 0.9, 1)), reference, 0.5)
    assert shifted.loss == pytest.approx((1 - 0.8) / 0.5)
    assert detection.compare(boxes(), reference, 0.5) == (1.0, 0, 0, 1)
    assert detection.compare(reference, boxes(), 0.5) == (1.0, 0, 1, 0)
    assert detection.compare(boxes((0, 0, 10, 10, 0.9, 2)), reference, 0.5) == (1.0, 0, 1, 1)  # another class
    both = detection.compare(boxes((0, 0, 10, 10, 0.9, 1), (50, 50, 60, 60, 0.7, 1)), reference, 0.5)
    assert both == (0.5, 1, 1, 0)


def test_a_score_that_crosses_the_threshold_is_no_fault_but_a_lost_object_is() -> None:
    reference = boxes((0, 0, 10, 10, 0.501, 1))
    assert detection.compare(boxes((0, 0, 10, 10, 0.499, 1)), reference, 0.5) == (0.0, 1, 0, 0)
    assert detection.compare(boxes((0, 0, 10, 10, 0.24, 1)), reference, 0.5).loss == 1.0
    faint = boxes((0, 0, 10, 10, 0.3, 1))
    assert detection.compare(faint, boxes(), 0.5).empty  # below the threshold on both sides


def test_frames_without_objects_are_told_apart() -> None:
    assert detection.compare(boxes(), boxes(), 0.5).empty
    assert not detection.compare(boxes((0, 0, 10, 10, 0.9, 1)), boxes((0, 0, 10, 10, 0.9, 1)), 0.5).empty


TIDL = Output("dets", "detection", 1e-3)
YOLOX = Output("out", "detection", 1e-3, decoder="yolox", width=64, height=32)


def test_tidl_forms_decode_to_the_same_boxes() -> None:
    dets = np.array([[[[1, 2, 11, 12, 0.9], [5, 5, 6, 6, 0.4], [0, 0, 0, 0, 0]]]], np.float32)
    labels = np.array([[[3, 1, -1]]], np.float32)
    two = decode([dets, labels], msgspec.structs.replace(TIDL, also=("labels",)))
    six = decode([np.concatenate([dets, labels.reshape(1, 1, 3, 1)], axis=-1)], TIDL)
    seven = decode([np.array([[0, 3, 0.9, 1, 2, 11, 12], [0, 1, 0.4, 5, 5, 6, 6]], np.float32)], TIDL)
    for found in (two, six, seven):
        assert found.boxes.tolist() == [[1, 2, 11, 12], [5, 5, 6, 6]]
        assert found.labels.tolist() == [3, 1]
        assert found.scores.tolist() == pytest.approx([0.9, 0.4])


def test_raw_heads_decode_to_the_same_boxes() -> None:
    """A box of 16 × 8 about (20, 12) of class 1, as YOLOv5, YOLOX and SSD heads say it."""
    expected = [12, 8, 28, 16]
    v5 = np.array([[[20, 12, 16, 8, 0.9, 0.1, 1.0], [20.5, 12, 16, 8, 0.8, 0.0, 1.0]]], np.float32)
    found = decode([v5], Output("out", "detection", 1e-3, decoder="yolov5"))
    assert found.boxes.tolist() == [expected]  # the second one is suppressed
    assert found.labels.tolist() == [1] and found.scores[0] == pytest.approx(0.9)
    cells = 8 * 4 + 4 * 2 + 2 * 1
    raw = np.zeros((1, cells, 7), np.float32)
    raw[0, 8 + 2] = [0.5, 0.5, np.log(2), 0, 0.9, 0.1, 1.0]  # second row, third column, stride 8
    found = decode([raw], YOLOX)
    assert found.boxes[0] == pytest.approx(expected, abs=1e-5)
    ssd = Output("boxes", "detection", 1e-3, decoder="ssd", also=("scores", "priors"))
    priors = np.array([[[16, 12, 16, 8], [99, 99, 4, 4]]], np.float32)
    relative = np.array([[[4 / 16 / 0.1, 0, 0, 0], [0, 0, 0, 0]]], np.float32)
    scores = np.array([[[0.05, 0.05, 0.9], [0.9, 0.1, 0.0]]], np.float32)
    found = decode([relative, scores, priors], ssd)
    assert found.boxes[0] == pytest.approx(expected, abs=1e-5)
    assert found.labels.tolist() == [2]
    corners = decode([np.array([[expected, [0, 0, 1, 1]]], np.float32), scores], ssd)
    assert corners.boxes[0].tolist() == expected


@pytest.mark.parametrize(
    ("outputs", "output"),
    [
        ([np.zeros((1, 3, 4))], TIDL),
        ([np.zeros((1, 3, 5)), np.zeros(2)], TIDL),
        ([np.zeros((2, 3, 6))], TIDL),
        ([np.zeros((1, 41, 7))], YOLOX),
        ([np.zeros((1, 5, 4))], Output("o", "detection", 1, decoder="ssd")),
        ([np.zeros((1, 5, 5))], Output("o", "detection", 1, decoder="yolov5")),
        ([np.zeros((1, 5, 4)), np.zeros((1, 4, 3))], Output("o", "detection", 1, decoder="ssd")),
    ],
)
def test_outputs_of_another_form_are_refused(outputs: list[np.ndarray], output: Output) -> None:
    with pytest.raises(ShapeMismatch, match="decoder expects"):
        decode(outputs, output)


def test_suppression_is_within_a_class() -> None:
    found = suppress(boxes((0, 0, 10, 10, 0.9, 1), (0, 0, 10, 9, 0.8, 1), (0, 0, 10, 9, 0.7, 2)), 0.45)
    assert found.scores.tolist() == [0.9, 0.7]
    assert overlaps(found.boxes, np.zeros((1, 4))).tolist() == [[0], [0]]


some_boxes = st.lists(
    st.tuples(*[st.floats(0, 50)] * 4, st.floats(0, 1), st.integers(0, 2)).map(
        lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3], b[4], b[5])
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(some_boxes, some_boxes)
def test_detection_loss_is_bounded_symmetric_and_zero_for_itself(one: list, other: list) -> None:
    left, right = boxes(*one), boxes(*other)
    found = detection.compare(left, right, 0.5)
    assert 0 <= found.loss <= 1
    back = detection.compare(right, left, 0.5)
    assert back.matched + back.missing == found.matched + found.spurious or found.loss != pytest.approx(back.loss)
    itself = left.chosen(np.prod(left.boxes[:, 2:] - left.boxes[:, :2], axis=1) > 1e-6)
    assert detection.compare(itself, itself, 0.5).loss == pytest.approx(0, abs=1e-9)


# Segmentation


def test_label_maps_from_scores_and_from_numbers_agree() -> None:
    wanted = np.array([[0, 2, 1], [1, 1, 0]])
    scores = np.eye(3)[wanted].transpose(2, 0, 1)[None].astype(np.float32)
    assert segmentation.labels(scores, "NCHW").tolist() == wanted.tolist()
    assert segmentation.labels(scores.transpose(0, 2, 3, 1), "NHWC").tolist() == wanted.tolist()
    assert segmentation.labels(wanted[None, None].astype(np.float32), "NCHW").tolist() == wanted.tolist()


def test_rare_classes_weigh_in_the_mean_and_not_in_pixels() -> None:
    reference = np.zeros((10, 10), np.int64)
    reference[0, 0] = 5
    device = np.zeros((10, 10), np.int64)
    assert segmentation.loss(device, reference, "NCHW") == pytest.approx(1 - (99 / 100 + 0) / 2)
    assert segmentation.pixels(device, reference, "NCHW") == 0.01
    assert segmentation.loss(reference, reference, "NCHW") == 0
    assert segmentation.loss(device + 1, device, "NCHW") == 1
    assert segmentation.loss(np.full((2, 2), NAN), np.zeros((2, 2)), "NCHW") == 1
    with pytest.raises(ShapeMismatch):
        segmentation.loss(np.zeros((2, 3, 4, 4)), np.zeros((2, 3, 4, 4)), "NCHW")


# Key points


def pose_rows(*offsets: float) -> np.ndarray:
    """People of 100 × 200, one a row, as YOLOX-pose gives them."""
    rows = []
    for offset in offsets:
        points = np.stack([np.linspace(0, 100, 17) + offset, np.linspace(0, 200, 17), np.ones(17)], axis=1)
        rows.append([offset, 0, offset + 100, 200, 0.9, 0, *points.ravel()])
    return np.array(rows, np.float32)[None, None]


POSE = Output("dets", "keypoints", 1.0)


def test_key_points_are_judged_by_the_size_of_the_person() -> None:
    reference = pose_rows(0, 500)
    assert keypoints.loss(reference, reference, POSE) == pytest.approx(0, abs=1e-9)
    assert keypoints.loss(reference[:, :, ::-1], reference, POSE) == pytest.approx(0, abs=1e-9)
    near, far = (keypoints.loss(pose_rows(shift, 500 + shift), reference, POSE) for shift in (2, 15))
    assert 0 < near < 0.05 < far < 0.9
    assert keypoints.loss(pose_rows(0), reference, POSE) == pytest.approx(0.5)
    assert keypoints.loss(pose_rows(250, 750), reference, POSE) == 1
    padded = np.concatenate([reference, np.zeros_like(reference)], axis=2)
    assert keypoints.loss(padded, reference, POSE) == pytest.approx(0, abs=1e-9)


def test_one_point_the_formula_of_coco() -> None:
    """d = 10, area 100², spread 0.05: exp(−d²/(2·s²·k²)) with k = 2·0.05."""
    one = np.array([[0, 0], [100, 100]], np.float64)
    output = Output("p", "keypoints", 1.0, decoder="points")
    expected = 1 - (1 + np.exp(-(10**2) / (2 * 100**2 * 0.1**2))) / 2
    assert keypoints.loss(one + np.array([[10, 0], [0, 0]]), one, output) == pytest.approx(expected)


def test_heatmaps_give_a_point_each() -> None:
    maps = np.zeros((1, 3, 20, 30), np.float32)
    for index, (x, y) in enumerate([(3, 4), (20, 15), (29, 0)]):
        maps[0, index, y, x] = 1
    output = Output("h", "keypoints", 1.0, decoder="heatmaps")
    assert keypoints.decode(maps, output).points[0].tolist() == [[3, 4], [20, 15], [29, 0]]
    nhwc = msgspec.structs.replace(output, layout="NHWC")
    assert keypoints.loss(maps.transpose(0, 2, 3, 1), maps.transpose(0, 2, 3, 1), nhwc) == 0
    with pytest.raises(ShapeMismatch, match="decoder"):
        keypoints.decode(np.zeros((1, 5)), output)


# Depth, embedding


def test_depth_and_embedding() -> None:
    reference = np.array([1.0, 2.0, 4.0, 0.0])
    assert depth.loss(np.array([1.24, 1.61, 4.0, 0.0]), reference) == 0
    assert depth.loss(np.array([1.26, 1.59, 4.0, 1.0]), reference) == 0.75
    assert depth.loss(np.array([NAN, 2.0, np.inf, -1.0]), reference) == 0.5
    assert depth.summary(reference) == {"nearest": 1, "farthest": 4, "median": 2}
    vector = np.array([[3.0, 4.0]])
    assert embedding.loss(7 * vector, vector) == pytest.approx(0)
    assert embedding.loss(-vector, vector) == 1
    assert embedding.loss(np.array([[-4.0, 3.0]]), vector) == pytest.approx(0.5)
    assert embedding.loss(np.zeros((1, 2)), vector) == 1
    assert embedding.loss(np.zeros((1, 2)), np.zeros((1, 2))) == 0
    assert embedding.loss(vector * 1e200, vector * 1e-200) == pytest.approx(0)


# What the profile says


SHAPES = {
    "classification": (1, 5),
    "segmentation": (1, 3, 4, 6),
    "depth": (1, 1, 4, 6),
    "embedding": (2, 8),
    "raw": (3, 7),
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SHAPES)), st.data())
def test_every_loss_is_in_its_range_whatever_the_bits(kind: str, data: st.DataObject) -> None:
    output = Output("y", kind, 0.1)  # type: ignore[arg-type]
    elements = st.floats(width=32)
    one, other = (data.draw(hnp.arrays(np.float32, SHAPES[kind], elements=elements)) for _ in range(2))
    assert 0 <= loss_for(output)(one, other) <= 1
    if np.isfinite(one).all() and kind != "classification":
        assert loss_for(output)(one, one) == pytest.approx(0, abs=1e-6)
    assert all(np.isfinite(value) for value in outputs_summary(output, {"y": one}).values() if np.isfinite(one).all())


def test_further_outputs_are_taken_by_name() -> None:
    output = msgspec.structs.replace(TIDL, also=("labels",))
    dets = np.array([[1, 2, 11, 12, 0.9]], np.float32)
    measure = outputs_loss(output)
    right = {"dets": dets, "labels": np.array([3]), "other": np.zeros(1)}
    assert measure(right, right) == 0
    assert measure(right | {"labels": np.array([2])}, right) == 1
    assert measure(right | {"dets": dets * NAN}, right) == 1
    assert outputs_summary(output, right) == pytest.approx({"objects": 1, "best": 0.9})
    assert outputs_summary(output, right | {"dets": dets * NAN}) == {}
    with pytest.raises(ShapeMismatch, match="no output labels"):
        measure({"dets": dets}, right)
    with pytest.raises(WrongLoss):
        loss_for(output)


def test_the_profile_chooses_among_the_losses_of_a_kind() -> None:
    one, other = np.array([0.4, 0.6]), np.array([0.6, 0.4])
    assert loss_for(Output("y", "classification", 1))(one, other) == pytest.approx(0.2)
    assert loss_for(Output("y", "classification", 1, loss="top1"))(one, other) == 1
    assert loss_for(Output("y", "segmentation", 1, loss="pixels"))(np.eye(2), np.zeros((2, 2))) == 0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "detection", "decoder": "points"}, "no decoder points"),
        ({"kind": "keypoints", "decoder": "ssd"}, "no decoder ssd"),
        ({"kind": "detection", "decoder": "yolox"}, "width"),
        ({"kind": "image", "loss": "top1"}, "no loss top1"),
        ({"kind": "custom"}, "entry point"),
    ],
)
def test_what_a_kind_cannot_do_is_refused_on_reading(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert({"name": "y", "step": 0.1, **wrong}, Output)


def share_of_wrong_signs(device: list[np.ndarray], reference: list[np.ndarray], output: Output) -> float:
    return float(np.mean(np.sign(device[0]) != np.sign(reference[0])))


def out_of_range(device: list[np.ndarray], reference: list[np.ndarray], output: Output) -> float:
    return 1.5


def test_a_users_own_loss_comes_from_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        metadata.EntryPoint(name, f"{__name__}:{function}", "tidegauge.losses")
        for name, function in (("signs", "share_of_wrong_signs"), ("broken", "out_of_range"))
    ]
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: globals()[self.value.rpartition(":")[2]])
    monkeypatch.setattr(metadata, "entry_points", lambda group: metadata.EntryPoints(points))
    own = Output("y", "custom", 1, loss="signs")
    assert loss_for(own)(np.array([1.0, -1.0]), np.array([1.0, 1.0])) == 0.5
    with pytest.raises(WrongLoss, match=r"gave 1\.5"):
        loss_for(Output("y", "custom", 1, loss="broken"))(np.zeros(2), np.zeros(2))
    with pytest.raises(WrongLoss, match=r"'other'.*broken, signs"):
        loss_for(Output("y", "custom", 1, loss="other"))


def test_lists_of_objects_show_no_symptom_but_non_finite_ones() -> None:
    reference = np.random.default_rng(1).random((1, 200, 6)).astype(np.float32)
    assert symptoms(TIDL, np.zeros_like(reference), reference) == ()
    assert symptoms(TIDL, reference * NAN, reference) == ("non_finite",)
    assert symptoms(Output("y", "depth", 1e-3), reference * 255, reference) == ("scale_error",)


class TestBothEmpty:
    """Night silence must not dilute the mean unseen."""

    DETECTION = Output(name="dets", kind="detection", step=0.01, also=("labels",), decoder="tidl")

    @staticmethod
    def found(*scores: float) -> dict[str, np.ndarray]:
        rows = [(10.0 * i, 0.0, 10.0 * i + 8, 8.0, score) for i, score in enumerate(scores)]
        return {
            "dets": np.array([rows or [(0.0, 0.0, 0.0, 0.0, 0.0)]], np.float32),
            "labels": np.zeros((1, max(1, len(rows))), np.int64),
        }

    @pytest.mark.parametrize(
        ("device", "reference", "expected"),
        [((), (), True), ((0.1,), (0.2,), True), ((0.9,), (), False), ((), (0.9,), False), ((0.9,), (0.9,), False)],
    )
    def test_of_boxes(self, device: tuple[float, ...], reference: tuple[float, ...], expected: bool) -> None:
        assert both_empty(self.DETECTION, self.found(*device), self.found(*reference)) is expected

    def test_of_poses(self) -> None:
        output = Output(name="poses", kind="keypoints", step=0.01)
        nobody = {"poses": np.zeros((1, 1, 1, 57), np.float32)}
        somebody = {"poses": np.full((1, 1, 1, 57), 0.9, np.float32)}
        assert both_empty(output, nobody, nobody)
        assert not both_empty(output, nobody, somebody)

    def test_a_picture_is_never_empty_and_what_is_not_finite_is_not_silence(self) -> None:
        picture = {"p": np.zeros((1, 3, 4, 4), np.float32)}
        assert not both_empty(Output(name="p", kind="image", step=0.01), picture, picture)
        broken = self.found()
        broken["dets"][...] = np.nan
        assert not both_empty(self.DETECTION, broken, self.found())
