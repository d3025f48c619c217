"""The kinds of event that the collector's log tells, as `tidegauge.log_kinds` has the agent's. No word is in both.

Where a line is about one board, that is its field `device`; lines of different boards are limited apart.
"""

from __future__ import annotations

from tidegauge.log_kinds import Kind

_NOTHING = "Nothing."
_DISK = "Make room, or replace the disk; boards keep what is theirs, and ask again by themselves."

COLLECTOR_STARTED = Kind(
    "collector_started",
    "The collector has started",
    "Its pages are at @TIDEGAUGE_PAGES@.",
    _NOTHING,
    ("version", "pages"),
)
COLLECTOR_STOPPING = Kind(
    "collector_stopping", "The collector is stopping", "Boards keep what they have until it is back.", _NOTHING
)
COLLECTOR_CUT_SHORT = Kind(
    "collector_cut_short",
    "The collector's stop was cut short",
    "Something did not end in time; nothing is lost, and a comparison under way begins again.",
    _NOTHING,
)
COLLECTOR_REFUSED = Kind(
    "collector_refused",
    "The collector refuses to run",
    "The unit has failed and stays so: starting again would only say the same again.",
    "Do what the sentence says, then `systemctl start` the unit.",
    ("exit_code",),
)
COLLECTOR_FAILED = Kind(
    "collector_failed",
    "The collector has failed",
    "It takes nothing in until it runs again; its unit starts it anew. Boards keep what is theirs.",
    "The sentence and the lines before it say why. Where it comes again and again, send them with `tidegauge support`.",
    ("exit_code",),
)
STORAGE_AWAITED = Kind(
    "storage_awaited",
    "The collector waits for its database or its bucket",
    "It can't be reached. Nothing is taken in meanwhile; boards keep what is theirs. It is tried again.",
    "Start it, or correct `database.url`, `blobs.endpoint` and start the collector anew.",
)
DATABASE_MIGRATED = Kind(
    "database_migrated",
    "The database has a newer schema now",
    "A collector of the earlier version refuses it from now on.",
    "Nothing. To go back to the earlier version, restore the backup that was made before.",
    ("before", "after"),
)
ANSWER_KEY_MADE = Kind(
    "answer_key_made",
    "The collector has made the key of its answers",
    "Boards may tell this collector's answers from anybody else's.",
    "Pin the key at the boards (`link.collector_keys`), and keep a copy of answers.key.",
    ("key",),
)
COMMANDS_OPEN = Kind(
    "commands_open",
    "Operators of this collector command boards",
    "All boards that pin the key @TIDEGAUGE_KEY@ obey whoever is an operator here.",
    "Nothing, if that was meant (`commands.key`).",
    ("key",),
)
BROKER_UP = Kind("broker_up", "The collector is connected to the broker", "It hears the boards.", _NOTHING)
BROKER_DOWN = Kind(
    "broker_down",
    "The collector has no broker",
    "Nothing of any board arrives. It is tried again.",
    "The sentence names the fault: address, name and password, certificate, or the broker itself.",
    ("fault",),
    "fault",
)
BROKER_REFUSED = Kind(
    "broker_refused",
    "The broker forbids the collector something",
    "What is named is not delivered, or another collector at the same broker would not be noticed.",
    "Give the collector's user the topics of the broker's template (agent_config/broker).",
    ("fault",),
    "fault",
)
STANDS_BACK = Kind(
    "stands_back",
    "Another collector serves this broker",
    "This one takes nothing from boards; its pages show what it has.",
    "Let both share one database, or give each a broker.",
    ("other",),
)
SERVES_AGAIN = Kind("serves_again", "The other collector is gone", "This one serves the broker.", _NOTHING)
MESSAGES_DROPPED = Kind(
    "messages_dropped",
    "Messages came faster than they could be taken",
    "Boards send again what got no answer.",
    "If that lasts, run more ingesters (`ingest.group`), or a quicker disk.",
    ("dropped",),
)
BUNDLE_COMPLETE = Kind(
    "bundle_complete",
    "Bundle @TIDEGAUGE_BUNDLE@ of @TIDEGAUGE_DEVICE@ is complete",
    "All of it is here; its comparison waits for its turn.",
    _NOTHING,
    ("device", "bundle"),
    "device",
)
BUNDLE_INCOMPLETE = Kind(
    "bundle_incomplete",
    "Bundle @TIDEGAUGE_BUNDLE@ of @TIDEGAUGE_DEVICE@ was waited for too long",
    "It is compared without @TIDEGAUGE_LACKING@ blobs; once more, if they come later.",
    "See whether the board is there, and what it says of its link.",
    ("device", "bundle", "lacking"),
    "device",
)
BUNDLE_COMPARED = Kind(
    "bundle_compared",
    "Bundle @TIDEGAUGE_BUNDLE@ of @TIDEGAUGE_DEVICE@ is compared",
    "Its report is on the collector's pages.",
    "Open the report; a culprit is the layer where device and float model part.",
    ("device", "bundle", "exit_code", "culprit", "cause", "seconds"),
    "device",
)
COMPARISON_FAILED = Kind(
    "comparison_failed",
    "A bundle can't be compared",
    "There is no report. The bundle stays, and its page says why.",
    "Do what the sentence says (mostly `tidegauge model add` for a compile that is not here), then compare it again.",
    ("device", "bundle"),
    "device",
)
RUN_FAILED = Kind(
    "run_failed",
    "A comparison that somebody asked for has failed",
    "There is no report of run @TIDEGAUGE_RUN@; its page says why.",
    "Do what the sentence says, and ask again.",
    ("run",),
)
COMPARISON_MOVED = Kind(
    "comparison_moved",
    "A comparison of an earlier version goes on",
    "What it had done is kept.",
    _NOTHING,
    ("comparison",),
)
PROCESS_DIED = Kind(
    "process_died",
    "Another process of this collector has died",
    "@TIDEGAUGE_COMPARISONS@ comparisons of it go on in living ones.",
    "Look into that process's own log.",
    ("process", "comparisons"),
)
MANIFEST_REFUSED = Kind(
    "manifest_refused",
    "A bundle of @TIDEGAUGE_DEVICE@ is refused",
    "It stays on the board, which offers it again a day later.",
    "The sentence names what is wrong with its manifest; board and collector may be too far apart in version.",
    ("device", "reason"),
    "device",
)
KEY_REFUSED = Kind(
    "key_refused",
    "A bundle of @TIDEGAUGE_DEVICE@ is refused for its signature",
    "It is not this board's, as far as its key says. A board that was set up anew has another key.",
    "Set up anew: `tidegauge collector keys forget` or `register`. Else find out who sends in its name.",
    ("device", "reason"),
    "device",
)
KEY_TAKEN = Kind(
    "key_taken",
    "The key of @TIDEGAUGE_DEVICE@ is known from now on",
    "It was the first to sign in this name; whatever is signed otherwise is refused.",
    "Nothing, if that is the board's key (`tidegauge keys device` on the board).",
    ("device", "key"),
)
NAME_REFUSED = Kind(
    "name_refused",
    "A board has a name of the collector's own",
    "Nothing is taken from it.",
    "Give it another name (key `device` of its agent.toml).",
    ("device",),
)
MESSAGE_IGNORED = Kind(
    "message_ignored",
    "A message is ignored",
    "It is not what its topic says, or not for here.",
    "From a board of another version: upgrade it. Else find out who publishes.",
    ("device", "reason"),
    "reason",
)
FILE_NOT_KEPT = Kind(
    "file_not_kept",
    "A file can't be kept now",
    "The board is told to ask again later: nothing is lost while it has room.",
    _DISK,
    ("device", "file", "fault"),
    "fault",
)
FILE_DAMAGED = Kind(
    "file_damaged",
    "A file arrived damaged",
    "It is asked for again.",
    "If it comes again and again, look at the board's disk.",
    ("device", "file"),
    "device",
)
BLOB_LOST = Kind(
    "blob_lost",
    "A blob is gone from the store",
    "It is asked for again.",
    "Run `tidegauge collector verify`: others may be gone too.",
    ("file",),
)
RECORDS_DAMAGED = Kind(
    "records_damaged",
    "Lines of a board's history are no records",
    "They are left out; the rest is taken.",
    "Look at the board's disk.",
    ("device", "damaged"),
    "device",
)
DATABASE_FAILED = Kind(
    "database_failed",
    "The database failed",
    "What is named was not taken; boards ask again.",
    "Look whether the disk is full, or the database server is away or overloaded.",
)
STORAGE_FAILED = Kind(
    "storage_failed",
    "A page or a question could not be answered from the storage",
    "Whoever asked was told to try again.",
    "Look at the database and the blobs: disk, server, bucket.",
)
REQUEST_FAILED = Kind(
    "request_failed",
    "A page or a question failed",
    "Whoever asked got an error.",
    "Do what the sentence says; where there is a traceback, that is a fault of the program: report it.",
)
BOARD_ALARM = Kind(
    "board_alarm",
    "Board @TIDEGAUGE_DEVICE@: alarm @TIDEGAUGE_DETECTOR@, verdict @TIDEGAUGE_VERDICT@",
    "It is on the board's page; where a capture can help, a bundle follows.",
    "The runbook (docs/runbook.md) has a paragraph for each alarm.",
    ("device", "alarm", "detector", "verdict"),
    "device",
)
BOARD_ALARM_CLEARED = Kind(
    "board_alarm_cleared",
    "Board @TIDEGAUGE_DEVICE@: alarm @TIDEGAUGE_DETECTOR@ has ended",
    "It is no longer latched.",
    _NOTHING,
    ("device", "alarm", "detector", "verdict"),
    "device",
)
COMMAND_NOT_KEPT = Kind(
    "command_not_kept",
    "A command for a board that is away is not kept",
    "Too many wait for it: it hears this one only if it is there now.",
    "See why the board is away, or send it again later.",
    ("device",),
    "device",
)
COMMAND_ANSWER_IGNORED = Kind(
    "command_answer_ignored",
    "An answer to a command is ignored",
    "It is not signed by the board's key.",
    "Find out who publishes in the board's name; after a new set-up: `tidegauge collector keys forget`.",
    ("device",),
    "device",
)
UPLOAD_REFUSED = Kind(
    "upload_refused",
    "An uploaded file is refused",
    "Nothing of it is kept; who uploaded it sees why.",
    _NOTHING,
    ("upload", "what"),
)
CHORE_FAILED = Kind(
    "chore_failed",
    "Something that the collector does by itself has failed",
    "It is tried again at its next turn.",
    "Do what the sentence says: mostly it is the disk or the database.",
    ("chore",),
    "chore",
)
BUNDLE_GIVEN_UP = Kind(
    "bundle_given_up",
    "Bundle @TIDEGAUGE_BUNDLE@ of @TIDEGAUGE_DEVICE@ is given up",
    "Its blobs and its report are deleted; its answer and its manifest stay.",
    "Nothing. Keys of [retention] say what is given up; `tidegauge collector pin` keeps one whatever they say.",
    ("device", "bundle", "reason"),
    "device",
)
RETENTION_DONE = Kind(
    "retention_done",
    "Retention has deleted something",
    "@TIDEGAUGE_BUNDLES@ bundles were given up, and @TIDEGAUGE_BLOBS@ blobs that nothing needed are gone.",
    _NOTHING,
    ("bundles", "blobs"),
)

#: Refusals of a manifest, by their word, that are a matter of keys.
_OF_KEYS = frozenset({"bad_signature", "unsigned", "other_key"})
#: All, in the order of this file.
KINDS: tuple[Kind, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Kind))


def manifest_refused(word: str) -> Kind:
    """The kind of a refused manifest. `word`: a reason of `metrics.REFUSALS`."""
    return KEY_REFUSED if word in _OF_KEYS else MANIFEST_REFUSED


def board_alarm(active: bool) -> Kind:
    return BOARD_ALARM if active else BOARD_ALARM_CLEARED
