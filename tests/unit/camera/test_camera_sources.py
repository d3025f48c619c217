"""Pace, sensor, synthetic clip and the sources without their worker."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.camera.config import CameraConfig
from tidegauge.camera.faults import CameraFault, without_credentials
from tidegauge.camera.folder import FolderSource, list_pictures, load_picture
from tidegauge.camera.open import open_source
from tidegauge.camera.pace import Pace
from tidegauge.camera.sensor import Sensor, expose, linear_to_srgb, srgb_to_linear
from tidegauge.camera.synthetic import EXPOSURES, SCENE_FRAMES, Clip, view
from tidegauge.clocks import Monotonic


@given(
    st.floats(0.5, 200),
    st.lists(st.floats(0, 3), min_size=1, max_size=40),
)
@settings(max_examples=60, deadline=None)
def test_pace_never_bursts(frames_per_second: float, work: list[float]) -> None:
    """However long the caller takes between pictures, two deliveries are never closer than the period allows."""
    pace, period, now = Pace(frames_per_second), 1 / frames_per_second, 100.0
    delivered = []
    for busy in work:
        now += busy
        wait = pace.delay(Monotonic(now))
        assert 0 <= wait <= period + 1e-9
        now += wait
        delivered.append(now)
    # A picture may be late by less than a period and the next one in time: two in `period`, never three.
    for first, third in zip(delivered, delivered[2:], strict=False):
        assert third - first >= period - 1e-6


def test_pace_holds_the_rate_for_a_caller_in_time() -> None:
    pace, now = Pace(10.0), 5.0
    delivered = []
    for _ in range(50):
        now += 0.03
        now += pace.delay(Monotonic(now))
        delivered.append(now)
    assert delivered[-1] - delivered[0] == pytest.approx(4.9)


def test_srgb_curve_is_the_standards() -> None:
    linear = srgb_to_linear()
    assert linear[0] == 0
    assert linear[255] == 1
    assert linear[188] == pytest.approx(0.5029, abs=1e-4)  # the well-known middle: code 188 is half the light
    back = linear_to_srgb()[np.rint(linear * 4095).astype(int)]
    assert np.abs(back.astype(int) - np.arange(256)).max() <= 1


@pytest.mark.parametrize("exposure", [0.1, 0.5])
def test_sensor_noise_is_shot_and_read_noise(exposure: float) -> None:
    sensor = Sensor(full_well=2000.0, read_noise=10.0)
    picture = np.full((400, 400), 188, np.uint8)
    linear = srgb_to_linear()[expose(picture, exposure, sensor, np.random.default_rng(0))].astype(float)
    signal = exposure * 0.5029
    assert linear.mean() == pytest.approx(signal, rel=0.02)
    assert linear.std() == pytest.approx(np.sqrt(signal / 2000 + (10 / 2000) ** 2), rel=0.05)


def test_clip_is_a_pure_function_of_seed_and_number(photos: Path) -> None:
    pictures = [load_picture(path) for path in list_pictures(photos)]
    clip = Clip(pictures, 96, 64, 3)
    forwards = [clip.frame(number) for number in (0, 1, 500, 501)]
    other = Clip(pictures, 96, 64, 3)
    for number, frame in ((501, forwards[3]), (0, forwards[0]), (500, forwards[2])):
        np.testing.assert_array_equal(other.frame(number), frame)
    assert forwards[0].shape == (64, 96, 3)
    assert forwards[0].dtype == np.uint8
    assert not np.array_equal(forwards[0], forwards[1])
    assert not np.array_equal(forwards[0], Clip(pictures, 96, 64, 4).frame(0))


@given(st.integers(0, 2**63), st.integers(0, 50), st.integers(1, SCENE_FRAMES - 1))
@settings(max_examples=80, deadline=None)
def test_camera_path_is_smooth_within_a_scene(seed: int, scene: int, offset: int) -> None:
    number = scene * SCENE_FRAMES + offset
    before, after = view(seed, number - 1, 5), view(seed, number, 5)
    assert before.photo == after.photo
    assert 0 <= after.x <= 1
    assert 0 <= after.y <= 1
    assert abs(after.x - before.x) < 0.02
    assert abs(after.y - before.y) < 0.02
    assert abs(after.zoom / before.zoom - 1) < 0.01
    assert EXPOSURES[0] <= after.exposure <= EXPOSURES[1]


def test_clip_shows_all_photographs_in_low_light(photos: Path) -> None:
    pictures = [load_picture(path) for path in list_pictures(photos)]
    clip = Clip(pictures, 96, 64, 0)
    looks = [view(0, number, len(pictures)) for number in range(0, 5 * SCENE_FRAMES, 20)]
    assert {look.photo for look in looks} == set(range(len(pictures)))
    assert max(look.exposure for look in looks) / min(look.exposure for look in looks) > 2
    for number in range(0, 5 * SCENE_FRAMES, 60):
        bright, _ = clip.scene_light(number)
        assert clip.frame(number).mean() < 0.8 * bright.mean()


def test_clip_moves_over_any_aspect_without_leaving_the_photograph() -> None:
    """Over a picture that rises steadily to the right and downwards, no view may show a repeated edge."""
    down, right = np.mgrid[0:240, 0:240]
    photo = np.stack([right, down, right], -1).astype(np.uint8)
    for width, height in ((64, 64), (200, 50), (40, 160)):
        clip = Clip([photo], width, height, 1)
        for number in range(0, 3 * SCENE_FRAMES, 7):
            seen, _ = clip.scene_light(number)
            assert seen.shape == (height, width, 3)
            across = seen[height // 2, :, 0].astype(int)
            along = seen[:, width // 2, 1].astype(int)
            for line in (across, along):
                tenth = len(line) // 10
                rises = (line[-1] - line[0]) / (len(line) - 1) * tenth
                assert line[tenth] - line[0] == pytest.approx(rises, abs=2)
                assert line[-1] - line[-1 - tenth] == pytest.approx(rises, abs=2)
                assert rises > 2


def test_folder_takes_no_other_files_and_resizes(pictures: Path) -> None:
    (pictures / "0-notes.txt").write_text("not a picture")
    source = FolderSource(CameraConfig("folder", str(pictures), width=16, height=16, frames_per_second=240))
    numbers = []
    for _ in range(4):
        picture = source.read()
        assert picture is not None
        assert picture.pixels.shape == (16, 16, 3)
        numbers.append((picture.sequence, int(picture.pixels[0, 0].argmax())))
    assert numbers == [(0, 0), (1, 1), (2, 2), (3, 0)]


def test_open_source_reads_each_kind_that_needs_no_network(pictures: Path, photos: Path) -> None:
    for config in (
        CameraConfig("folder", str(pictures), width=32, height=16),
        CameraConfig("synthetic", str(photos), width=96, height=64),
    ):
        source = open_source(config)
        picture = source.read()
        source.close()
        assert picture is not None
        assert picture.pixels.shape == (source.height, source.width, 3)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rtsp://user:p%40ss@10.0.0.2:554/a/b", "rtsp://10.0.0.2:554/a/b"),
        ("rtsp://user:p@ss@10.0.0.2/a", "rtsp://10.0.0.2/a"),
        ("rtsp://cam/a?user=admin&password=x", "rtsp://cam/a"),
        ("rtsp://[fe80::1]:554/a", "rtsp://[fe80::1]:554/a"),
    ],
)
def test_credentials_of_a_camera_are_not_shown(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


def test_a_frame_is_cheap(photos: Path) -> None:
    """The clip must not load a board or the demo: far below the 100 ms of a frame at 10 frames/s, in CPU time."""
    clip = Clip([load_picture(path) for path in list_pictures(photos)], 384, 256, 0)
    clip.frame(0)
    started = time.process_time()
    for number in range(0, 200, 10):
        clip.frame(number)
    assert (time.process_time() - started) / 20 < 0.05


def test_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(CameraFault, match="can't be listed") as caught:
        list_pictures(path)
    assert caught.value.kind == "open_failed"
