"""`tidegauge …`, with a journal at another address than systemd's: `python journalled.py ADDRESS ARGUMENT…`."""

from __future__ import annotations

import functools
import sys

from tidegauge import log_output
from tidegauge.cli import main

if __name__ == "__main__":
    address = sys.argv.pop(1)
    log_output.begin = functools.partial(log_output.begin, address=address)
    main()
