"""What the pipeline worker is fed from: the newest picture, and the slots of what it is given."""

from __future__ import annotations

from typing import Any

import pytest

from tidegauge.agent.frames import PRESSED_FRAMES, FrameFeed, PendingFrame
from tidegauge.pipeline.layout import RingSpec
from tidegauge.pipeline.messages import AttachFrames


class Ring:
    """Stands for the camera's ring."""

    def close(self) -> None:
        """Nothing is mapped."""


class Fed:
    def __init__(self) -> None:
        self.dropped: list[str] = []
        self.freed: list[int] = []
        self.feed = FrameFeed(self.dropped.append)
        self.camera(1)

    def camera(self, generation: int) -> None:
        ring: Any = Ring()
        self.feed.attach(AttachFrames(generation, 4, 4, RingSpec(4, 48)), ring, self.freed.append)

    def offer(self, generation: int, slot: int) -> None:
        self.feed.offer(PendingFrame(generation, slot, 0.0), "pipeline_busy")


@pytest.fixture
def fed() -> Fed:
    return Fed()


def test_the_newest_picture_wins_and_the_slot_of_the_older_one_is_free(fed: Fed) -> None:
    fed.offer(1, 0)
    fed.offer(1, 1)
    assert (fed.dropped, fed.freed) == (["pipeline_busy"], [0])
    frame = fed.feed.take()
    assert frame is not None and frame.slot == 1
    assert fed.feed.take() is None
    assert fed.freed == [0], "what the worker has is not free"


def test_a_picture_of_a_camera_that_is_gone_is_not_sent(fed: Fed) -> None:
    fed.camera(2)
    fed.offer(1, 0)
    assert fed.feed.take() is None
    assert (fed.dropped, fed.freed, len(fed.feed.sent)) == (["stale_generation"], [], 0)


def test_slots_of_what_a_dead_worker_had_come_back_to_the_camera(fed: Fed) -> None:
    """One whose answer it was looking at, one on the accelerator, one that waits."""
    for slot in (0, 1):
        fed.offer(1, slot)
        assert fed.feed.take() is not None
    fed.offer(1, 2)
    fed.feed.lose("pipeline_down")
    assert (fed.dropped, fed.freed, len(fed.feed.sent)) == (["pipeline_down"] * 3, [0, 1, 2], 0)
    fed.offer(1, 3)
    assert fed.feed.take() is not None


def test_whether_pictures_had_to_wait_is_known_for_a_while(fed: Fed) -> None:
    def run(slot: int) -> None:
        fed.offer(1, slot)
        fed.feed.take()

    assert fed.feed.pressed, "until it is known better"
    for _ in range(PRESSED_FRAMES):
        run(0)
        fed.feed.answered()
    assert not fed.feed.pressed
    run(0)
    fed.offer(1, 1)  # while the worker is busy
    assert fed.feed.answered().slot == 0
    assert fed.feed.pressed


def test_a_picture_that_could_not_be_sent_waits_again_until_a_newer_one_comes(fed: Fed) -> None:
    fed.offer(1, 0)
    assert fed.feed.take() is not None
    fed.feed.give_back()
    assert not fed.feed.sent
    fed.offer(1, 1)
    assert fed.freed == [0]
    frame = fed.feed.take()
    assert frame is not None and frame.slot == 1


def test_a_new_camera_or_worker_knows_no_ring(fed: Fed) -> None:
    for change in (lambda: fed.camera(2), lambda: fed.feed.lose("pipeline_down")):
        fed.feed.known = True
        change()
        assert not fed.feed.known
