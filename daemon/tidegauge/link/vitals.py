"""Keys of `Status.detail`: what a board says of itself with its status, for those who can't scrape it.

A key is there when its value is known: an absent one is never a zero.
"""

from __future__ import annotations

#: Loss of the newest shadow sample, 0…1.
LOSS = "loss"
#: Largest share of an output's elements that are at an end of the range, 0…1.
SATURATION = "saturation"
#: 1 while the camera has a problem of any kind.
CAMERA_PROBLEM = "camera_problem"
#: Share of the spool's bytes that is taken, 0…1.
SPOOL = "spool"
#: Unix seconds at which the link's certificate ends.
CERTIFICATE = "certificate"
#: `alarm.<cause>`: 1 while an alarm of this cause is latched.
ALARM = "alarm."
#: `evidence.<detector>` and `limit.<detector>`: logarithm of its evidence, and where it raises its alarm.
EVIDENCE = "evidence."
LIMIT = "limit."
#: `observations.<detector>`: observations behind the evidence, of all light contexts since it was zero.
OBSERVATIONS = "observations."
