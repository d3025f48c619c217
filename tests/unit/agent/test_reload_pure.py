"""What a changed agent.toml changes in a running agent, and what waits for a restart."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegauge.agent import config_changes
from tidegauge.agent.config import AgentConfig, CaptureConfig, GoldenConfig, MetricsConfig, ShadowConfig
from tidegauge.agent.config_changes import AT_ONCE, at_once, differences, keys, taken
from tidegauge.agent.file_watch import FileWatch, settled, signature, wait
from tidegauge.agent.reload import sentence
from tidegauge.camera.config import CameraConfig
from tidegauge.link.config import LinkConfig
from tidegauge.restartable import Restartable


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An asynchronous test in a loop of its own."""

    @functools.wraps(test)
    def runs(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return runs


CONFIG = AgentConfig("cam", "state", "profile.toml", CameraConfig("synthetic", "photos"), LinkConfig())


def test_every_key_named_exists() -> None:
    known = set(keys(AgentConfig))
    tables = {key.partition(".")[0] for key in known}
    assert known | tables >= AT_ONCE
    assert {key for key in known if at_once(key)} < known


def test_what_needs_a_restart_keeps_its_value_and_is_named() -> None:
    wanted = msgspec.structs.replace(
        CONFIG,
        shadow=ShadowConfig(gap_mean=30.0),
        metrics=MetricsConfig(port=9999),
        golden=GoldenConfig(count=5, interval=60.0),
        capture=CaptureConfig(per_day=3, trace_folder="/elsewhere"),
        device="other",
    )
    present = taken(CONFIG, wanted)
    assert differences(CONFIG, present) == ("shadow.gap_mean", "golden.interval", "capture.per_day")
    assert differences(present, wanted) == ("device", "golden.count", "capture.trace_folder", "metrics.port")
    assert (present.shadow.gap_mean, present.golden, present.metrics.port) == (30.0, GoldenConfig(3, 60.0), 9464)
    assert "waits for a restart of the agent: device, golden.count" in sentence((), differences(present, wanted))


def test_the_same_again_is_no_change() -> None:
    assert taken(CONFIG, CONFIG) == CONFIG
    assert differences(CONFIG, CONFIG) == ()


def test_a_key_nobody_has_thought_about_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "AT_ONCE", frozenset())
    wanted = msgspec.structs.replace(CONFIG, shadow=ShadowConfig(gap_mean=30.0))
    assert taken(CONFIG, wanted) == CONFIG


def test_signature_tells_another_file_of_the_same_size(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    folder.mkdir()
    (folder / "net.bin").write_bytes(b"one")
    before = signature((folder, tmp_path / "model.onnx"))
    assert before[str(tmp_path / "model.onnx")] is None
    (tmp_path / "new").write_bytes(b"two")
    (tmp_path / "new").rename(folder / "net.bin")
    assert signature((folder, tmp_path / "model.onnx")) != before
    (folder / "net.bin").unlink()
    assert signature((folder,)) == {}


@run
async def test_a_replaced_file_wakes_who_waits(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("one")
    watch = FileWatch((tmp_path, tmp_path / "is not there"))
    event = watch.subscribe()
    watch.start()
    try:
        (tmp_path / "new").write_text("two")
        (tmp_path / "new").rename(file)
        async with asyncio.timeout(30):
            await event.wait()
    finally:
        watch.stop()


@run
async def test_without_a_hint_it_looks_by_the_clock() -> None:
    async with asyncio.timeout(30):
        await wait(asyncio.Event(), 0.01)


@run
async def test_settled_waits_until_nothing_changes(tmp_path: Path) -> None:
    file = tmp_path / "growing"
    file.write_bytes(b"")

    async def grow() -> None:
        for _ in range(5):
            await asyncio.sleep(0.02)
            with file.open("ab") as opened:
                opened.write(b"more")

    growing = asyncio.create_task(grow())
    found = await settled((file,), 0.2, 30.0)
    assert growing.done()
    assert found == signature((file,))
    assert found[str(file)] is not None


@run
async def test_restart_ends_the_body_in_order_and_starts_it_anew() -> None:
    restartable, ended, ran = Restartable(), [], asyncio.Event()

    async def body() -> None:
        try:
            ran.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # what an orderly end awaits is not cut off
            ended.append(True)

    restartable.restart()  # nothing runs
    for count in (1, 2):
        ran.clear()
        running = asyncio.create_task(restartable.run(body))
        await ran.wait()
        restartable.restart()
        restartable.restart()  # one is under way
        assert await running
        assert len(ended) == count


@run
async def test_what_the_body_raises_is_raised() -> None:
    async def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await Restartable().run(late)
    running = asyncio.create_task(Restartable().run(asyncio.Event().wait))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@run
async def test_a_body_that_ends_by_itself_says_so() -> None:
    async def short() -> None:
        return

    assert not await Restartable().run(short)
