"""For an application that runs the model itself: hand frames over to the agent. Standard library only.

from tidegauge.tap import Tap

tap = Tap("/run/tidegauge/tap.socket", "doorbell", run=run, close=close, open=open_again)
tap.opened(inputs=[("input", (1, 3, 224, 224), "float32")], outputs=[("enhanced", (1, 3, 224, 224), "float32")])
while True:
    ...
    tap.frame([tensor], outputs, seconds)
"""

from __future__ import annotations

from tidegauge.tap.client import Tap

__all__ = ["Tap"]
