"""An application of its own: OpenCV reads, ONNX Runtime runs, and Tidegauge's tap watches. Copy what you need.

    python3 onnxruntime_loop.py --model enhancer.onnx --artifacts artifacts --source /dev/video0

Two lines of the loop are the tap's: `before_opening` at the start, and `frame` after each run. The three methods that
it is given let the agent run its golden tensors here, and close the session for the minute of a capture; with
`--keep-session` that is left out, and a capture is taken before the session of the next start is opened.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from tidegauge.tap import Tap

SOCKET = "/run/tidegauge/tap.socket"
NUMPY = {"tensor(float)": "float32", "tensor(uint8)": "uint8", "tensor(int8)": "int8", "tensor(int64)": "int64"}


class Model:
    """The application's session, and the tap beside it. `runtime`: the module with TI's InferenceSession."""

    def __init__(
        self, model: str, artifacts: str, runtime: str, socket: str, name: str, keep_session: bool = False
    ) -> None:
        self._runtime: Any = importlib.import_module(runtime)
        self._model, self._artifacts, self._name = model, artifacts, runtime
        self._session: Any = None
        callbacks = {} if keep_session else {"close": self.close, "open": self.open}
        self.tap = Tap(socket, name, run=self.answer, **callbacks)
        self.tap.before_opening(600.0)  # a capture may be under way, or was put off: no second session beside it
        self.open()

    def open(self) -> None:
        self._session = self._runtime.InferenceSession(
            self._model,
            providers=["TIDLExecutionProvider", "CPUExecutionProvider"],
            provider_options=[{"artifacts_folder": self._artifacts, "debug_level": "0"}, {}],
        )
        told = [
            [(each.name, each.shape, NUMPY[each.type]) for each in group]
            for group in (self._session.get_inputs(), self._session.get_outputs())
        ]
        provider = self._session.get_providers()[0]
        self.tap.opened(*told, runtime=self._name, provider=provider, virtual=getattr(self._runtime, "VIRTUAL", False))

    def close(self) -> None:
        self._session = None  # TI's provider frees its graph with the last reference

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the input, which is [1, 3, height, width]."""
        height, width = self._session.get_inputs()[0].shape[2:]
        return width, height

    def answer(self, inputs: Sequence[Any]) -> list[Any]:
        names = [each.name for each in self._session.get_inputs()]
        tensors = {name: np.asarray(value) for name, value in zip(names, inputs, strict=True)}
        outputs: list[Any] = self._session.run(None, tensors)
        return outputs

    def frame(self, picture_bgr: Any) -> list[Any]:
        """One picture through the network: resized, RGB, 0…1, as at the compile."""
        pixels = cv2.resize(picture_bgr, self.size, interpolation=cv2.INTER_AREA)[..., ::-1]
        tensor = np.ascontiguousarray(pixels.transpose(2, 0, 1)[np.newaxis], np.float32) * np.float32(1 / 255)
        began = time.perf_counter()
        outputs = self.answer([tensor])
        self.tap.frame([tensor], outputs, time.perf_counter() - began)
        return outputs


def pictures(source: str) -> Iterator[Any]:
    """Of a folder, again and again; else of whatever OpenCV can open."""
    if Path(source).is_dir():
        found = [cv2.imread(str(path)) for path in sorted(Path(source).iterdir()) if path.suffix in (".jpg", ".png")]
        while True:
            yield from found
    video = cv2.VideoCapture(source)
    while True:
        there, picture = video.read()
        if not there:
            return
        yield picture


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", required=True)
    parser.add_argument("--artifacts", required=True)
    parser.add_argument("--runtime", default="onnxruntime", help="module with TI's InferenceSession")
    parser.add_argument("--socket", default=SOCKET, help="`camera.source` of agent.toml")
    parser.add_argument("--source", required=True, help="a folder of pictures, a device, a file, or a pipeline")
    parser.add_argument("--keep-session", action="store_true", help="never close it for a capture")
    parser.add_argument("--rate", type=float, default=30.0, help="frames a second, at most")
    return parser


def main() -> None:
    given = options().parse_args()
    model = Model(given.model, given.artifacts, given.runtime, given.socket, "onnxruntime-loop", given.keep_session)
    for picture in pictures(given.source):
        began = time.monotonic()
        model.frame(picture)  # the product would show or send the outputs here
        time.sleep(max(0.0, 1.0 / given.rate - (time.monotonic() - began)))


if __name__ == "__main__":
    main()
