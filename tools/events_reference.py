"""Prints docs/events.md from the code's own tables and types. `make docs`; a test compares the two.

What a detector looks for is said here, in one line each: `DETECTORS`. A test finds every name in the code and asks for
its line.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator

import msgspec

from tidegauge import attribution
from tidegauge.agent import events, supervision
from tidegauge.agent.capture import STEPS
from tidegauge.agent.streams import LOSS, LOSS_BY_KIND, NMSE
from tidegauge.attribution import REPLAYS, Verdict
from tidegauge.collector.log_kinds import BUNDLE_COMPARED
from tidegauge.collector.log_kinds import KINDS as OF_COLLECTOR
from tidegauge.detectors.camera import CONDITIONS
from tidegauge.link.board_commands import AnyCommand
from tidegauge.link.gate import Refusal as CommandRefusal
from tidegauge.log_kinds import ALARM_RAISED, KINDS, Kind
from tidegauge.log_limit import MOST, SECONDS
from tidegauge.metrics import CAPTURE_RESULTS, HEALTH_STATES, KNOWN_ANSWER_SIDES, Refusal
from tidegauge.spool.planner import DropReason
from tidegauge.tidl.log_causes import LogCause

HEAD = """\
# Events

Generated from the code by `tools/events_reference.py`: the words that appear in alarms, status, bundles, metrics and
logs. An alarm goes out once when it is latched and once when it ends, on the topic `…/alarm` ([protocol](protocol.md));
it is kept over restarts, and is in `tidegauge status` and in the bundle of its capture.

What the log says, and how to find it in systemd's journal, is below: [the agent](#in-the-journal), [the
collector](#in-the-collectors-journal).
"""
JOURNAL = """\
Under systemd each line goes to the journal with its level, its place in the code, the board (`TIDEGAUGE_DEVICE`), the
model (`TIDEGAUGE_MODEL`), the part that says it (`TIDEGAUGE_PART`), and, where it tells of an event of this table, with
that event's `MESSAGE_ID`, its word as `TIDEGAUGE_EVENT`, and the fields named here, each under `TIDEGAUGE_`.
Elsewhere it is text on stderr: `time LEVEL part: sentence`.

    journalctl -u tidegauge-agent MESSAGE_ID={id}    # every alarm
    journalctl -u tidegauge-agent TIDEGAUGE_EVENT={word} TIDEGAUGE_DETECTOR=loss    # those of one detector
    journalctl -u tidegauge-agent -x -n 20    # with effect and cure beside each
    journalctl -u tidegauge-agent -o json --output-fields=MESSAGE,TIDEGAUGE_BUNDLE    # for programs

Of one kind, and of one worker, detector or fault, at most {most} lines are written in {seconds:.0f} seconds; how many
were left out is a line of its own. The agent never waits for the journal: what that does not take at once is counted by
`tidegauge_log_lines_lost_total`. Ids and words never change."""
COLLECTOR = """\
The same of the collector. Each line has the collector's own name (`TIDEGAUGE_COLLECTOR`, that of its database) and its
process (`TIDEGAUGE_PROCESS`); where it is about one board, that is `TIDEGAUGE_DEVICE`, and lines of different boards
are limited apart. What its web server and its queue say goes the same way, with no event of its own.

    journalctl -u tidegauge-collector MESSAGE_ID={id}    # every comparison, with its sentence
    journalctl -u tidegauge-collector TIDEGAUGE_DEVICE=cam-07    # all about one board
    journalctl -u tidegauge-collector TIDEGAUGE_EVENT=manifest_refused TIDEGAUGE_EVENT=key_refused

`tidegauge_collector_log_lines_lost_total` counts what the journal did not take."""
#: Detector's name → what it has found.
DETECTORS = {
    LOSS: "the product loss between device and reference has been above its accepted limit for too long to be chance",
    NMSE: "the same of the watched output's normalised squared error",
    LOSS_BY_KIND: "the same of the loss, each sample against the limit of its own kind of input",
    "acceptance": "the acceptance itself failed: too many losses above the limit, or a symptom or golden mismatch held",
    "change": "after a change, device and reference agree less than in the acceptance before it",
    "invariant": "an output of the device is no possible answer: not finite, constant, of a wrong size",
    "input_drift": "the inputs' features no longer look like those of acceptance",
    **{f"known_answer_{side}": f"the {side} gave a golden tensor another answer, twice" for side in KNOWN_ANSWER_SIDES},
    **{f"camera_{condition}": f"frames have been {condition} for too long" for condition in CONDITIONS},
    "accelerator_hung": "a session did not come up, a run did not end, or the session did not close, in its time",
    "accelerator_crashed": "the worker with the session ended by itself, or a device run failed",
    "accelerator_down": "the accelerator was given up: nothing is sent to it until a person clears the alarm",
    "accelerator_slow": "a device run takes much longer than at first",
    "accelerator_traces": "the accelerator goes on dumping traces after a capture",
    "not_offloaded": "the CPU ran the model, or a part of it, instead of the C7x",
}


def reference() -> str:
    parts = [
        _table("Alarms", ("detector", "has found"), DETECTORS.items(), f"Supervision: {_words(supervision.NAMES)}."),
        _table("Verdicts", ("verdict", "severity", "says"), _verdicts(), "Who is at fault, and what to do next."),
        _table("Replays", ("replay", "says"), REPLAYS.items(), "The input of a suspected pair is run again."),
        _table(
            "Faults in TIDL's logs",
            ("word", "cure"),
            sorted(cause.value for cause in LogCause),
            "Labels of `tidegauge_worker_ends_total` and `tidegauge_remote_log_faults_total`, as far as these go.",
        ),
        _table("Words", ("where", "one of"), _vocabularies()),
        _table(
            "In the journal",
            ("event", "id", "fields", "effect", "what to do"),
            _kinds(KINDS),
            JOURNAL.format(id=ALARM_RAISED.id, word=ALARM_RAISED.word, most=MOST, seconds=SECONDS),
        ),
        _table(
            "In the collector's journal",
            ("event", "id", "fields", "effect", "what to do"),
            _kinds(OF_COLLECTOR),
            COLLECTOR.format(id=BUNDLE_COMPARED.id),
        ),
        _table("Commands of a board", ("command", "parameters", "does"), _structs(AnyCommand.__args__)),
        _table(
            "Inside the agent",
            ("event", "members", "says that"),
            _structs(each for _, each in inspect.getmembers(events, _own)),
            "Types of `tidegauge.agent.events`, emitted on its bus, for those who read or change the agent.",
        ),
    ]
    return "\n".join([HEAD, *parts])


def _table(title: str, columns: tuple[str, ...], rows: Iterable[Iterable[str]], said: str = "") -> str:
    head = [f"## {title}\n", *([f"{said}\n"] if said else [])]
    cells = [[f"`{first}`", *map(_cell, rest)] for first, *rest in rows]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([*head, f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines, ""])


def _kinds(kinds: Iterable[Kind]) -> Iterator[tuple[str, ...]]:
    for kind in kinds:
        yield kind.word, f"`{kind.id}`", _words(kind.fields), _plain(kind.effect), _plain(kind.cure)


def _verdicts() -> Iterator[tuple[str, ...]]:
    for _, each in sorted(inspect.getmembers(attribution, lambda found: isinstance(found, Verdict))):
        yield each.fault, each.severity, each.sentence


def _vocabularies() -> Iterator[tuple[str, str]]:
    yield "tidegauge_agent_state{state}", _words(HEALTH_STATES)
    yield "tidegauge_captures_total{result}", _words(CAPTURE_RESULTS)
    yield "tidegauge_captures_refused_total{reason}", _words(sorted(Refusal))
    yield "tidegauge_spool_dropped_total{reason}", _words(sorted(DropReason))
    yield "steps of a capture", _words(STEPS)
    yield "reason of a refused command", _words(sorted(CommandRefusal))


def _own(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, msgspec.Struct) and found.__module__ == events.__name__


def _structs(kinds: Iterable[type[msgspec.Struct]]) -> Iterator[tuple[str, str, str]]:
    for kind in kinds:
        # A docstring that msgspec or the base class left is not this type's own.
        said = kind.__dict__.get("__doc__") or ""
        yield kind.__name__, _words(field.encode_name for field in msgspec.structs.fields(kind)), said


def _words(found: Iterable[str]) -> str:
    return ", ".join(f"`{each}`" for each in (found if not isinstance(found, frozenset) else sorted(found)))


def _plain(text: str) -> str:
    """Place-holders of the journal's catalogue, as names of fields."""
    return re.sub(r"@(\w+)@", r"`\1`", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
