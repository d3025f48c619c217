from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tidegauge.pipeline.process import FailureKind, WorkerFault
from tidegauge.pipeline.worker import check_profile
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.tensors import TensorSpec

PROFILE = Profile(
    name="enhancer",
    runtime="onnx",
    model="/m.onnx",
    artifacts="/a",
    preprocess=Preprocess(32, 24),
    output=Output("enhanced", "image", step=0.01),
)


class FakeSession:
    """Announces tensors, and runs nothing."""

    kind = "fake"

    def __init__(self, *inputs: TensorSpec) -> None:
        self.inputs = inputs
        self.outputs = (TensorSpec("enhanced", (1, 3, 24, 32), "float32"),)


PICTURE = TensorSpec("input", (1, 3, 24, 32), "float32")


def check(profile: Profile, *inputs: TensorSpec) -> None:
    session: Any = FakeSession(*inputs)
    check_profile(profile, session)


def test_a_profile_that_fits_passes_in_either_layout() -> None:
    check(PROFILE, PICTURE)
    preprocess = msgspec.structs.replace(PROFILE.preprocess, layout="NHWC", dtype="uint8")
    check(msgspec.structs.replace(PROFILE, preprocess=preprocess), TensorSpec("input", (1, 24, 32, 3), "uint8"))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"width": 64},
            "[preprocess] makes float32 [1, 3, 24, 64], but the model's input input is float32 [1, 3, 24, 32]",
        ),
        ({"layout": "NHWC"}, "[preprocess] makes float32 [1, 24, 32, 3]"),
        ({"dtype": "uint8"}, "[preprocess] makes uint8 [1, 3, 24, 32]"),
        ({"scale": (1.0,)}, "preprocess.scale has 1 numbers"),
    ],
)
def test_what_does_not_fit_is_named(keys: dict[str, Any], told: str) -> None:
    preprocess = msgspec.structs.replace(PROFILE.preprocess, **keys)
    with pytest.raises(WorkerFault) as caught:
        check(msgspec.structs.replace(PROFILE, preprocess=preprocess), PICTURE)
    assert caught.value.kind == FailureKind.PROFILE_MISMATCH
    assert told in caught.value.problem
    assert caught.value.cure


def test_a_model_of_two_inputs_is_refused() -> None:
    with pytest.raises(WorkerFault, match=r"has 2 inputs \(input, mask\), and a frame makes one"):
        check(PROFILE, PICTURE, TensorSpec("mask", (1,), "float32"))
