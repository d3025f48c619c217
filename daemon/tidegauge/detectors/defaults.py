"""The numbers of the stack, all in one place: what each detector, acceptance and window goes by unless told otherwise.

Some are keys of the agent's configuration, whose defaults are these; the others are fixed. How they were chosen is told
in docs/detectors.md and in the records it names. `FEWEST` and the like, below which something can't be computed at all,
stay where it is computed.
"""

from __future__ import annotations

from typing import Literal

# --- the betting detector ---

#: Bets that are averaged.
BETS = 8
#: Smallest and largest bet, in units of 1/m0. Half of what is allowed at most, so that no single observation of 0
#: can take more than half of the evidence away.
SMALLEST_BET, LARGEST_BET = 0.02, 0.5
#: Of one stream.
FALSE_ALARMS_A_YEAR = 1.0
#: A larger α would make the guarantee empty: fewer than a hundred observations between false alarms.
LARGEST_ALPHA = 0.01

# --- blocks ---

#: Correlation times in a block, at least.
TIMES = 10
#: Neighbouring means of blocks of ten correlation times correlate by 0.03 (an exponential memory); so much is allowed.
ALLOWED = 0.05
#: Beyond it by so many standard errors; looked at when this many means were seen, then at each doubling.
ERRORS, FIRST_LOOK = 3.0, 32
#: A block grows by this factor, while the evidence is below this share of its limit.
GROWTH, CALM = 2, 0.5

# --- acceptance ---

#: m0 above this, and a golden loss above this, fail it.
MAX_LOSS = 0.15
#: What is added to the upper bound of the mean loss, and the least m0.
TOLERANCE, LEAST_M0 = 0.02, 0.03
#: What is added to the upper bound of the share of large tensor errors: light and scenes shift them more than they
#: shift the product loss.
SHARE_TOLERANCE = 0.05
#: Tensor errors above this quantile of acceptance's are large; NMSE of an SQNR of 60 dB, where it is clipped, is not.
NMSE_QUANTILE, LEAST_NMSE = 0.95, 1e-6
#: A symptom in so many samples running fails it; in more than this share of all it does even if it never persisted.
SYMPTOM_SAMPLES, SYMPTOM_SHARE = 5, 0.05
#: Independent samples that it waits for where scenes stay; how far beyond its samples it goes on at most, for that or
#: where only the width of the bound keeps the limit from being met.
INDEPENDENT, PATIENCE = 60, 4
#: The bound of the mean loss is taken over so many groups of neighbours at least, as far as scenes' staying is only
#: known from tensor errors: fewer would make it too wide for any board.
GROUPS = 100
#: From a bound that holds with 95 % to one that holds with 99 %: quantiles of the normal law.
SURE = 2.326 / 1.645

# --- known answers ---

#: Mismatches running, of one golden tensor, that raise an alarm: a single flip may be a cosmic ray; twice is a fault.
STRIKES = 2

# --- input drift ---

#: Values in a window, and in a reference at least; seconds between verdicts, at least: windows of one verdict and the
#: next share nothing.
WINDOW, INTERVAL = 200, 86400.0
#: A verdict a day: one false warning a year.
LEVEL = 1 / 365.25
#: PSI: bins of equal share of the reference; above the limit a change matters (the usual rule of thumb).
BINS, PSI_LIMIT = 10, 0.25
#: So many of the newest values are looked at for a verdict: a change of an hour ago fills the first, one of hours ago
#: the last. Of a hundred alarms with independent inputs that have not changed, one is put down to them, over all looks.
LOOKS, LOOKS_LEVEL = (16, 32, 64, 128, WINDOW), 0.01

# --- light contexts: mean luma and mean chroma (distance from grey), 0…255 ---

#: Low light begins below the first, ends above the second.
DARKER, BRIGHTER = 50.0, 70.0
#: Infrared begins below the first, ends above the second.
GREYER, MORE_COLOURFUL = 2.0, 4.0
#: Seconds that a frame must look otherwise before the context changes; samples that a context needs to be tested.
CONTEXT_HOLD, CONTEXT_SAMPLES = 120.0, 200

# --- the camera: starting points, to be set on footage of the place ---

Condition = Literal["frozen", "black", "blown", "blurred", "covered"]
#: Luma, 0…255. Black: nearly all is below video black (ITU-R BT.601: 16).
BLACK_LUMA, BLACK_QUANTILE = 16.0, 0.99
#: Blown: more than half is at the end.
BLOWN_LUMA, BLOWN_SHARE = 250.0, 0.5
#: Blurred: sharpness below this share of its context's median. Covered: its edges have little to do with the context's.
BLURRED_SHARE, COVERED_CORRELATION = 0.2, 0.2
#: What a condition is judged by must keep so many times its limit in all but 5 % of acceptance's own frames.
MARGIN, HEALTHY_QUANTILE = 1.5, 0.05
#: Seconds that a condition must hold.
HOLD: dict[Condition, float] = {"frozen": 10.0, "black": 60.0, "blown": 60.0, "blurred": 600.0, "covered": 600.0}
