"""The kinds of event that the log tells: each with an id for the journal, its fields, what it means and what to do.

One table for the log's lines, the journal's catalogue (`journalctl -x`) and docs/events.md. A line says its kind by
`log.warning("…", extra=CONFIG_REFUSED.of())`.
"""

from __future__ import annotations

import uuid

import msgspec

from tidegauge.tidl.log_causes import LogCause

#: Of the fields that are ours, in the journal.
PREFIX = "TIDEGAUGE_"
#: Names are made unique in it. Never change it: ids are in people's filters and alerts.
NAMESPACE = uuid.UUID("6d1a2c1e-5f0b-4b0e-9a55-3f2c8f2d7c41")

Value = str | int | float


class Said(msgspec.Struct, frozen=True):
    """What goes beside a line: its kind, and the kind's fields."""

    kind: Kind
    fields: dict[str, Value]


class Kind(msgspec.Struct, frozen=True):
    """A kind of event. `word` names it for ever, for its id follows from it.

    `fields`: what a line of it may carry beside its sentence; `apart`: the one of them whose values are limited apart.
    """

    word: str
    subject: str
    effect: str
    cure: str
    fields: tuple[str, ...] = ()
    apart: str = ""

    @property
    def id(self) -> str:
        """The journal's MESSAGE_ID: 32 hexadecimal digits."""
        return uuid.uuid5(NAMESPACE, self.word).hex

    def identity(self) -> dict[str, str]:
        return {"MESSAGE_ID": self.id, f"{PREFIX}EVENT": self.word}

    def of(self, **fields: Value) -> dict[str, Said]:
        """For `extra=` of a line. A test looks at every call for fields that the kind doesn't have."""
        return {"said": Said(self, fields)}


_NOTHING = "Nothing."
_RUNBOOK = "The runbook (docs/runbook.md) has a paragraph for each alarm; `tidegauge status` shows the evidence."

AGENT_STARTED = Kind(
    "agent_started",
    "The agent has started",
    "It watches from now on. @TIDEGAUGE_METRICS@ is where its metrics are.",
    _NOTHING,
    ("version", "metrics"),
)
AGENT_STOPPING = Kind("agent_stopping", "The agent is stopping", "Nothing watches the accelerator any more.", _NOTHING)
START_REFUSED = Kind(
    "start_refused",
    "The agent refuses to start",
    "The unit has failed and stays so: starting again would only say the same again.",
    "Do what the sentence says, try it by `tidegauge check`, then `systemctl start` the unit.",
    ("exit_code",),
)
ALARM_RAISED = Kind(
    "alarm_raised",
    "Alarm @TIDEGAUGE_DETECTOR@ (@TIDEGAUGE_SEVERITY@), verdict @TIDEGAUGE_VERDICT@",
    "It is latched, was sent to the broker, and is kept over restarts; where it can help, a capture follows.",
    f"{_RUNBOOK} When the cause is gone: `tidegauge alarm clear`.",
    ("alarm", "detector", "verdict", "severity"),
    "detector",
)
ALARM_CLEARED = Kind(
    "alarm_cleared",
    "Alarm @TIDEGAUGE_DETECTOR@ has ended",
    "It is no longer latched, and that was sent to the broker.",
    _NOTHING,
    ("alarm", "detector", "verdict"),
    "detector",
)
WORKER_STARTED = Kind(
    "worker_started",
    "A worker has started",
    "It has a process of its own.",
    _NOTHING,
    ("worker", "worker_pid"),
    "worker",
)
WORKER_ENDED = Kind(
    "worker_ended",
    "The @TIDEGAUGE_WORKER@ worker has ended out of turn",
    "Another one is started after a pause, which grows while that goes on. Until then its work is not done.",
    "Look into the worker's log in logs/ of the state folder; for the pipeline worker also into the C7x's log.",
    ("worker", "reason"),
    "worker",
)
WORKER_KILLED = Kind(
    "worker_killed",
    "A worker had to be killed",
    "If it had a session, what it held on the C7x is lost until the board is rebooted.",
    "If that comes again, give it more time (`runtime.stop_timeout`) or find out what it hangs in.",
    ("worker", "worker_pid"),
    "worker",
)
WORKER_STUCK = Kind(
    "worker_stuck",
    "A worker does not end on SIGKILL",
    "It hangs in a driver; no other one is started beside it, so its work is not done.",
    "Reboot the board.",
    ("worker", "worker_pid"),
)
WORKER_LEFT = Kind(
    "worker_left",
    "A worker of an earlier agent still ran",
    "It is ended before another one is started.",
    "Find out what killed the agent; the lines before tell.",
    ("worker_pid",),
)
PIPELINE_UP = Kind(
    "pipeline_up",
    "The accelerator runs the model",
    "A session has opened, and device runs have been completed.",
    _NOTHING,
    ("runtime", "provider"),
)
CAMERA_UP = Kind("camera_up", "The camera delivers", "Frames come.", _NOTHING, ("generation",))
REFERENCE_UP = Kind(
    "reference_up", "The reference is ready", "Shadow samples can be measured.", _NOTHING, ("runtime", "generation")
)
SAMPLE_FAILED = Kind(
    "sample_failed",
    "A shadow sample could not be measured",
    "It is missing from the statistics, and is counted.",
    "The sentence names what is wrong; if every sample fails, `tidegauge check` finds out more.",
)
CORE_RESTARTED = Kind(
    "core_restarted",
    "The C7x was restarted",
    "Sessions that others had on it are gone.",
    "Find out what hung it; the lines before tell.",
    ("reason",),
)
CORE_NOT_RESTARTED = Kind(
    "core_not_restarted",
    "The C7x could not be restarted",
    "The accelerator is given up until a person clears the alarm.",
    "The sentence names the key or the process that forbids it; else reboot the board.",
    ("reason",),
)
CAPTURE_TAKEN = Kind(
    "capture_taken",
    "A capture was taken",
    "Bundle @TIDEGAUGE_BUNDLE@ is in the spool, and goes to the collector.",
    "Open its report at the collector.",
    ("bundle", "detector"),
)
CAPTURE_REFUSED = Kind(
    "capture_refused",
    "A capture was refused",
    "There are no traces of this anomaly.",
    "The sentence names what forbids it. Limits and quiet hours are keys of [capture] in agent.toml.",
    ("bundle", "detector"),
)
CAPTURE_FAILED = Kind(
    "capture_failed",
    "A capture has failed",
    "There are no traces of this anomaly; the pipeline runs again, or is being started.",
    "Do what the sentence says, then `tidegauge agent capture`.",
    ("bundle", "detector"),
)
CAPTURE_CUT_OFF = Kind(
    "capture_cut_off",
    "A capture was cut off by the end of the agent",
    "Its traces were removed.",
    "If the anomaly lasts: `tidegauge agent capture`.",
    ("bundle",),
)
TRACES_LEFT = Kind(
    "traces_left",
    "The accelerator goes on dumping traces",
    "Each run is slow, and fills /tmp.",
    "The agent opens another session once; if an alarm follows, reboot the board.",
)
GOLDEN_STOPPED = Kind(
    "golden_stopped",
    "A known-answer test was not finished",
    "Whether the device still gives its accepted answers is known of some tensors only.",
    "It comes again by its interval; if it never ends, see why the workers are replaced.",
    ("checked",),
)
ACCEPTED = Kind(
    "accepted", "The acceptance is done", "Its loss is the reference from now on.", _NOTHING, ("mean_loss", "limit")
)
REFERENCE_VOID = Kind(
    "reference_void",
    "What was accepted no longer holds",
    "A new acceptance has begun, and is compared with the former one.",
    "Nothing, if the change was meant.",
    ("changed",),
)
STATE_UNWRITABLE = Kind(
    "state_unwritable",
    "The state folder can't be written",
    "The agent goes on in memory; what is new is lost with this run.",
    "Make room, or mount the disk writable.",
    ("folder",),
)
STATE_WRITABLE = Kind("state_writable", "The state folder can be written again", "All is kept.", _NOTHING, ("folder",))
STATE_SET_ASIDE = Kind(
    "state_set_aside",
    "The agent's state could not be used",
    "It was set aside, and a new acceptance starts.",
    "Look at the disk: files are damaged by a power cut only on one that lies about its writes.",
    ("file",),
)
SPOOL_FAULT = Kind(
    "spool_fault",
    "The spool's disk has a fault",
    "Bundles may not be kept; it is tried again.",
    "Make room, or replace the card.",
    ("fault",),
)
BUNDLE_SET_ASIDE = Kind(
    "bundle_set_aside",
    "A bundle can't be read",
    "It was set aside, and the collector learns that it is lost.",
    "Look at the disk.",
    ("bundle",),
)
BUNDLE_STORED = Kind(
    "bundle_stored", "A bundle is stored at the collector", "The board has deleted its copy.", _NOTHING, ("bundle",)
)
BUNDLE_REFUSED = Kind(
    "bundle_refused",
    "The collector refuses a bundle",
    "It stays on the board, and is offered again a day later.",
    "The sentence names the reason: its policy, its disk, or a damaged file.",
    ("bundle", "reason"),
)
ANSWER_IGNORED = Kind(
    "answer_ignored",
    "An answer in the collector's name is ignored",
    "It has no signature by a key that the board pins: nothing is deleted on its word, and the board asks again.",
    "The reason `unsigned` or `unknown_key` at every answer: pin the key that `tidegauge collector keys own` prints. "
    "Else somebody forges answers: look who may publish at the broker.",
    ("reason",),
)
LINK_UP = Kind("link_up", "The link to the broker is up", "Alarms and bundles go out.", _NOTHING)
LINK_DOWN = Kind(
    "link_down",
    "No link to the broker",
    "Alarms and bundles wait on the board. It is tried again; the same reason is said once.",
    "The sentence names the fault: address, name and password, certificate, or the broker itself.",
    ("fault",),
    "fault",
)
LINK_REFUSED = Kind(
    "link_refused",
    "The broker forbids something",
    "The link is up, but what is named is not delivered.",
    "Give the board's user the topics of the broker's template (agent_config/broker).",
    ("fault",),
    "fault",
)
CERTIFICATE_TAKEN = Kind("certificate_taken", "A renewed certificate is in use", "The link goes on with it.", _NOTHING)
CERTIFICATE_REFUSED = Kind(
    "certificate_refused",
    "The link's certificate needs a person",
    "The one before is used as long as it is valid; then there is no link.",
    "Do what the sentence says.",
)
CONFIG_TAKEN = Kind(
    "config_taken",
    "The configuration was read",
    "The sentence says what was taken at once, and which keys wait for a restart.",
    "Nothing, or `systemctl restart` where a key waits.",
)
CONFIG_REFUSED = Kind(
    "config_refused",
    "The configuration is wrong, and not taken",
    "The agent goes on with the old one, whole. It would not start with this one.",
    "Correct the key that is named; it is read again by itself.",
)
FILES_TAKEN = Kind(
    "files_taken",
    "Other artifacts or another model are taken up",
    "A new acceptance begins, and is compared with the former one.",
    "Nothing, if the change was meant.",
)
FILES_REFUSED = Kind(
    "files_refused",
    "Replaced artifacts or model are refused",
    "What was opened before goes on running; nothing is captured.",
    "Copy the whole artifacts folder and the model of one compile; `tidegauge check` says what is wrong.",
)
COMMAND_DONE = Kind(
    "command_done", "A command was carried out", "audit.log has it too.", _NOTHING, ("command",), "command"
)
COMMAND_REFUSED = Kind(
    "command_refused",
    "A command was refused",
    "Nothing was changed.",
    "The sentence says why. From somebody without a pinned key: find out who may publish on the broker.",
    ("command", "reason"),
    "reason",
)
REMOTE_LOG_UP = Kind(
    "remote_log_up", "The remote-log server runs", "The C7x's lines are kept.", _NOTHING, ("worker_pid",)
)
REMOTE_LOG_DOWN = Kind(
    "remote_log_down",
    "The remote-log server does not run",
    "Captures are refused: a traced run without it hangs the accelerator.",
    "The sentence says why; exactly one may run.",
)
APPLICATION_UP = Kind(
    "application_up",
    "An application hands its frames over",
    "The agent watches its session.",
    _NOTHING,
    ("application", "application_pid"),
)
APPLICATION_DOWN = Kind(
    "application_down",
    "No application hands frames over",
    "Nothing is watched until one does.",
    "See whether the application runs, and whether it was told the socket's path.",
)
LINES_SUPPRESSED = Kind(
    "lines_suppressed",
    "Lines of one kind came too often",
    "At most ten of a kind are written in a minute; @TIDEGAUGE_SUPPRESSED@ were left out. Metrics count all events.",
    "See to what the kept lines say.",
    ("suppressed", "like"),
)
LINES_LOST = Kind(
    "lines_lost",
    "The journal did not take lines",
    "@TIDEGAUGE_LOST@ lines are gone: the journal was full or away, and nothing waits for it.",
    "Look at systemd-journald: its disk, and who floods it.",
    ("lost",),
)


def _of_fault(fault: LogCause) -> Kind:
    return Kind(
        f"fault_{fault.word}",
        f"A worker ended: {fault.word.replace('_', ' ')}",
        "TIDL's logs name this fault; the sentence has their line. Another worker is started after a pause.",
        f"{fault.cure[0].upper()}{fault.cure[1:]}.",
        WORKER_ENDED.fields,
        WORKER_ENDED.apart,
    )


#: By the word of a fault that TIDL's logs name.
FAULTS = {fault.word: _of_fault(fault) for fault in LogCause}


def worker_ended(fault: str) -> Kind:
    """The kind of a worker's end. `fault`: the word of a `LogCause`, empty where no line named one."""
    return FAULTS[fault] if fault else WORKER_ENDED


#: By `metrics.CAPTURE_RESULTS`.
CAPTURES = {"captured": CAPTURE_TAKEN, "refused": CAPTURE_REFUSED, "failed": CAPTURE_FAILED}

#: All, in the order of this file.
KINDS: tuple[Kind, ...] = (*(each for each in list(globals().values()) if isinstance(each, Kind)), *FAULTS.values())
