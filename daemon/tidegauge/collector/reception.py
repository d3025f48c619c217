"""Carries out what the protocol's state machine asks for, for one file of one device: disk, hash, database, answer.

Everything here blocks and runs in a thread. A lock keeps the calls for one file apart: a thread outlives the
cancellation of the task that waits for it.

Where several ingesters share the messages, each call begins with what the database knows, and each chunk is recorded at
once: nothing is kept in memory but the time at which "incomplete" is due.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
from sqlalchemy.exc import OperationalError

from tidegauge.bundles.manifest import Manifest
from tidegauge.clocks import Wall, monotonic, wall
from tidegauge.collector import pull_policy
from tidegauge.collector.log_kinds import (
    BLOB_LOST,
    DATABASE_FAILED,
    FILE_DAMAGED,
    FILE_NOT_KEPT,
    RECORDS_DAMAGED,
    manifest_refused,
)
from tidegauge.collector.manifests import BadManifest, admit, is_manifest, is_records
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.store import BundleConflict
from tidegauge.link import ranges
from tidegauge.link.commands import Command, FinCommand, InitCommand, fin_topic
from tidegauge.link.ranges import Ranges
from tidegauge.link.receiver import (
    FAILURE,
    Action,
    Confirm,
    Discard,
    Reason,
    Receiver,
    ReceiverLimits,
    Respond,
    Verify,
    WriteChunk,
    told_once,
)
from tidegauge.link.wire import FileResponse, Init, decode
from tidegauge.spool.records import parse

_log = logging.getLogger(__name__)

#: Bytes written between two recordings of the coverage. A recording costs a sync of file and database.
RECORD_BYTES = 8 << 20
#: Seconds after which a device whose file can't be taken now should ask again.
RETRY_SECONDS = 30.0
#: The same where the day's budget is spent: the longest that a board believes.
BUDGET_SECONDS = 3600.0
#: A file of which another device has sent nothing for so long is asked for here.
ELSEWHERE_SECONDS = 60.0
#: Seconds for which another ingester that checks a file is left to answer alone. A board that asks again has waited for
#: longer than this, by its time-out.
QUIET_SECONDS = 10.0
#: Largest segment of a journal: a board closes one at a sixteenth of this.
RECORDS_BYTES = 1 << 20
#: States of a bundle that still waits.
_OPEN = ("received", "waiting_blobs")
#: Topic, what it says, payload.
Message = tuple[str, Command, bytes]


class Reception:
    """One file of one device, from its first message to the answer "stored"."""

    def __init__(self, device: str, file_id: str, shelf: Shelf) -> None:
        self.device, self.file_id = device, file_id
        self._shelf = shelf
        self._unrecorded: Ranges = ()
        self._lock = threading.Lock()
        self._receiver = self._restored(monotonic())

    @property
    def deadline(self) -> float | None:
        """When `tick` is due, on the monotonic clock."""
        return self._receiver.deadline

    @property
    def closing(self) -> bool:
        """Whether the file's last chunk is all that its check waits for."""
        return self._receiver.closing

    @property
    def nonce(self) -> str:
        """What the board's last question said, as far as this process or the database knows."""
        return self._receiver.nonce

    def handle(self, messages: Sequence[Message], now: float) -> list[FileResponse]:
        """One message of the device, or several chunks in order, of which one answer may tell; returns the answers."""
        with self._lock:
            if self._shelf.partials.shared:
                due = self._receiver.deadline
                self._receiver = self._restored(now)
                if due is not None and self._receiver.deadline is not None:  # a "fin" said again puts nothing off
                    self._receiver.deadline = min(due, self._receiver.deadline)
            answers = [answer for message in messages for answer in self._handle(*message, now)]
            return told_once(answers) if len(messages) > 1 else answers

    def _handle(self, topic: str, command: Command, payload: bytes, now: float) -> list[FileResponse]:
        if isinstance(command, InitCommand) and self._receiver.init is None:
            refusal = self._before_init(topic, payload)
            if refusal is not None:
                return [refusal]
        known = self._receiver.init
        if isinstance(command, FinCommand) and known is not None and not self._receiver.stored:
            self._note_fin()
        actions = self._receiver.handle(topic, command, payload, now)
        if self._receiver.init is not None and self._receiver.init != known and not self._receiver.stored:
            self._begin(self._receiver.init)
        return self._carry_out(topic, actions, now)

    def tick(self, now: float) -> list[FileResponse]:
        with self._lock:
            if self._shelf.partials.shared and self._receiver.deadline is not None:
                found = self._shelf.store.transfer(self.device, self.file_id)
                if found is None or found[0].state != "receiving":
                    self._receiver.deadline = None  # another ingester had the last chunk, and has answered
                    return []
                self._receiver.coverage = found[0].coverage
            return self._carry_out("", self._receiver.tick(now), now)

    def _note_fin(self) -> None:
        """Whichever ingester writes the last chunk must know that it was the last."""
        if self._shelf.partials.shared:
            self._receiver.coverage = self._shelf.store.set_fin(self.device, self.file_id, wall())

    def record(self) -> None:
        """Make durable what has been written, then say so in the database: never more than is on the disk."""
        with self._lock:
            try:
                self._record()
            except OSError as error:
                self._disk_failed(error)

    def _record(self) -> None:
        if self._unrecorded:
            self._shelf.partials.sync(self.device, self.file_id)
            known = self._shelf.store.add_coverage(self.device, self.file_id, self._unrecorded, wall())
            self._receiver.coverage = ranges.union(self._receiver.coverage, known)
            self._unrecorded = ()

    def _restored(self, now: float) -> Receiver:
        """The state machine as it was left, by an earlier run of this program or by another ingester."""
        shelf = self._shelf
        init: Init | None = None
        coverage: Ranges = ()
        found, held = shelf.store.known(self.device, self.file_id)
        if found is not None and found[0].state in ("receiving", "stored"):
            init = msgspec.convert(found[1], Init)
            if found[0].state == "receiving" and shelf.partials.exists(self.device, self.file_id):
                coverage = found[0].coverage
        taken = found is not None and found[0].state == "stored" and init is not None and is_records(init)
        receiver = self._new_receiver(init, coverage, held or taken)
        if found is not None and found[0].fin and init is not None and not receiver.stored and not receiver.complete:
            topic = fin_topic(self.device, self.file_id, init.size)
            receiver.handle(topic, FinCommand(init.size, self.file_id), b"", now)
        return receiver

    def _new_receiver(self, init: Init | None, coverage: Ranges, stored: bool) -> Receiver:
        limits = ReceiverLimits(max_size=self._shelf.limits.blob_bytes)
        return Receiver(self.file_id, limits, init=init, coverage=coverage, stored=stored)

    def _before_init(self, topic: str, payload: bytes) -> FileResponse | None:
        """Limits that the state machine doesn't know: a manifest's size, and the room that a device may take."""
        try:
            init: Init = decode(Init, payload)
        except msgspec.DecodeError:
            return None  # the state machine has the answer
        if is_manifest(init) and init.size > self._shelf.limits.manifest_bytes:
            return FileResponse(topic, FAILURE, Reason.TOO_LARGE)
        if is_records(init) and init.size > RECORDS_BYTES:
            return FileResponse(topic, FAILURE, Reason.TOO_LARGE)
        if self._receiver.stored:
            return None
        if not is_manifest(init) and self._over_budget():
            return self._postpone(topic, "budget", BUDGET_SECONDS)
        others, size = self._shelf.store.open_beside(self.device, self.file_id)
        room = self._shelf.limits.device_partial_bytes - size
        if others >= self._shelf.limits.device_transfers or init.size > room:
            return self._postpone(topic, "device_quota")
        return None

    def _begin(self, init: Init) -> None:
        self._shelf.store.set_transfer(self.device, self.file_id, msgspec.to_builtins(init), init.size, wall())

    def _postpone(self, topic: str, reason: str, seconds: float = RETRY_SECONDS) -> FileResponse:
        self._shelf.metrics.postponed(reason)
        return FileResponse(topic, 0, retry_after_ms=round(seconds * 1000))

    def _carry_out(self, topic: str, actions: list[Action], now: float) -> list[FileResponse]:
        answers: list[FileResponse] = []
        todo = list(actions)
        while todo:
            action = todo.pop(0)
            try:
                match action:
                    case Respond(response):
                        answers.append(response)
                    case WriteChunk():
                        todo[:0] = self._write(action, now)
                    case Verify():
                        todo[:0] = self._verify(action, topic)
                    case Confirm():
                        todo[:0] = self._confirm(action)
                    case Discard():
                        self._discard()
            except (BadManifest, BundleConflict) as error:
                return [*answers, self._refuse(action, error)]
            except OSError as error:
                self._disk_failed(error)
                return [*answers, self._postpone(topic, "disk")]
        return answers

    def _disk_failed(self, error: OSError) -> None:
        """The device may ask again. Raises `error` where asking again is no help.

        After EIO the kernel takes what it could not write for written: another sync would succeed, with nothing on the
        disk. So all that came of this file is thrown away. Not so in a bucket, which has told of each part that it is
        durable, and whose failure now would only fail the throwing away too.
        """
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
            raise error
        said = FILE_NOT_KEPT.of(device=self.device, file=self.file_id, fault=errno.errorcode[error.errno].lower())
        _log.error("%s of %s can't be kept now: %s", self.file_id, self.device, error.strerror, extra=said)
        self._receiver.verifying = False
        if error.errno == errno.EIO and not self._shelf.partials.shared:
            self._receiver.coverage = ()
            self._discard()

    def _write(self, action: WriteChunk, now: float) -> list[Action]:
        size = len(action.data)
        self._shelf.partials.write(self.device, self.file_id, action.offset, action.data)
        self._shelf.metrics.received(size)
        self._unrecorded = ranges.add(self._unrecorded, action.offset, action.offset + size)
        # Of a whole file the check comes next, and what that enters says more.
        whole = self._receiver.covers_all_with(action.offset, action.offset + size)
        if self._shelf.partials.shared or (ranges.total(self._unrecorded) >= RECORD_BYTES and not whole):
            self._record()
        return self._receiver.written(action.topic, action.offset, action.offset + size, now)

    def _verify(self, action: Verify, topic: str) -> list[Action]:
        """Hash the bytes, put them into the blob store, durably, and tell the database; only then "stored"."""
        shelf = self._shelf
        if shelf.partials.shared:
            claim = shelf.store.claim_check(self.device, self.file_id, shelf.me)
            if not claim.mine:
                return self._left_to_another(topic, claim.seconds)
        try:
            with shelf.partials.whole(self.device, self.file_id, action.size) as path:
                if path is None:
                    if shelf.partials.shared and not shelf.store.has_check(self.device, self.file_id, shelf.me):
                        return self._left_to_another(topic, 0.0)  # which has moved the parts from under this hand
                    said = FILE_DAMAGED.of(device=self.device, file=self.file_id)
                    form = "%s of %s arrived with another hash; it is asked for again"
                    _log.warning(form, self.file_id, self.device, extra=said)
                    return self._receiver.verified(False)
                done = self._keep(path, action.size)
        except (OSError, OperationalError):
            self._give_back()
            raise
        shelf.partials.discard(self.device, self.file_id)
        self._unrecorded = ()
        for bundle in done:
            shelf.completed(*bundle)
        return self._receiver.verified(True)

    def _left_to_another(self, topic: str, seconds: float) -> list[Action]:
        """Another ingester is at it, and answers. One that was killed does not: then a board that asks again is told
        when to, which is when that ingester will be taken for dead."""
        self._receiver.verifying = False
        if seconds < QUIET_SECONDS:
            return []
        self._shelf.metrics.postponed("verifying")
        return self._receiver.postponed(topic, min(RETRY_SECONDS, self._shelf.me.dead_after))

    def _give_back(self) -> None:
        """The check has come to no end here: the device asks again, and any ingester may be the one that hears it."""
        if not self._shelf.partials.shared:
            return
        try:
            self._shelf.store.give_back_check(self.device, self.file_id, self._shelf.me)
        except OperationalError as error:
            form = "%s of %s stays claimed for a while: %s"
            _log.error(form, self.file_id, self.device, error.orig, extra=DATABASE_FAILED.of())

    def _keep(self, path: Path, size: int) -> list[tuple[str, str]]:
        """Put a whole file into the blob store; returns the bundles that it has made complete."""
        shelf = self._shelf
        if self._receiver.init is not None and is_records(self._receiver.init):
            self._take_records(path)
            shelf.store.end_transfer(self.device, self.file_id, "stored", "", wall())
            return []
        manifest = None
        if self._receiver.init is not None and is_manifest(self._receiver.init):
            manifest = self._admitted(path.read_bytes())
        shelf.store.reprieve(self.file_id)
        shelf.blobs.put(self.file_id, path, settled=True)
        if manifest is not None:
            self._enter(manifest)
        return shelf.store.add_blob(self.file_id, size, wall(), sender=self.device, pulled=0 if manifest else size)

    def _take_records(self, path: Path) -> None:
        """Enter a segment's records, each in its own row; what is no record is counted, and told by the log."""
        segment = parse(path.read_bytes())
        self._shelf.store.add_records(self.device, segment.records, wall())
        for _ in range(segment.damaged):
            self._shelf.metrics.refused("bad_record")
        if segment.damaged:
            said = RECORDS_DAMAGED.of(device=self.device, damaged=segment.damaged)
            form = "%d lines of %s in a segment of %s are no records"
            _log.warning(form, segment.damaged, self.file_id, self.device, extra=said)

    def _admitted(self, content: bytes) -> Manifest:
        """A manifest that this device may send. Raises BadManifest."""
        manifest = admit(content, self._shelf.limits.manifest_bytes, self.device)
        self._shelf.trust.check(content, manifest)
        return manifest

    def _enter(self, manifest: Manifest) -> None:
        """Enter the bundle of a manifest. Raises BundleConflict."""
        shelf = self._shelf
        if shelf.store.add_bundle(manifest, self.file_id, wall(), pull_policy.chosen(manifest, shelf.pull)):
            shelf.completed(manifest.device, manifest.bundle_id)

    def _confirm(self, action: Confirm) -> list[Action]:
        shelf = self._shelf
        if self._receiver.init is not None and is_records(self._receiver.init):
            return self._receiver.confirmed(action.topic)
        if not shelf.blobs.has(self.file_id):
            form = "blob %s is in the database but not in the store; it is asked for again"
            _log.error(form, self.file_id, extra=BLOB_LOST.of(file=self.file_id))
            shelf.store.forget_blob(self.file_id)
            return self._receiver.lost(action.topic)
        wanted: tuple[str, ...] = ()
        if self._receiver.init is not None and is_manifest(self._receiver.init):
            found = shelf.store.bundle_of_manifest(self.device, self.file_id)
            if found is None:  # a restored database, or another device's manifest
                manifest = self._admitted(shelf.blobs.get(self.file_id, shelf.limits.manifest_bytes))
                self._enter(manifest)
                bundle, waits = manifest.bundle_id, False
            else:
                bundle, waits = found[0], found[1] in _OPEN
            wanted = shelf.store.wanted(self.device, bundle)
            if not wanted and waits and shelf.store.settle(self.device, bundle):
                shelf.completed(self.device, bundle)  # its last blob has come by another way
            if wanted:
                return self._ask_for(action.topic, wanted)
        return self._receiver.confirmed(action.topic, wanted)

    def _ask_for(self, topic: str, wanted: tuple[str, ...]) -> list[Action]:
        """Ask for blobs, or for patience: the day's budget is spent, or another board is sending the same ones."""
        shelf = self._shelf
        if self._over_budget():
            shelf.metrics.postponed("budget")
            return self._receiver.postponed(topic, BUDGET_SECONDS)
        elsewhere = shelf.store.sent_by_another(self.device, wanted, Wall(wall() - ELSEWHERE_SECONDS))
        own = tuple(name for name in wanted if name not in elsewhere)
        if not own:
            shelf.metrics.postponed("elsewhere")
            return self._receiver.postponed(topic, RETRY_SECONDS)
        return self._receiver.confirmed(topic, own)

    def _over_budget(self) -> bool:
        budget = self._shelf.pull.device_mib_per_day << 20
        return bool(budget) and self._shelf.store.pulled(self.device, wall()) >= budget

    def _discard(self) -> None:
        self._shelf.partials.discard(self.device, self.file_id)
        self._unrecorded = ()
        if self._receiver.init is None:
            self._shelf.store.end_transfer(self.device, self.file_id, "aborted", "the device gave it up", wall())
        else:
            self._begin(self._receiver.init)
            self._shelf.store.empty_transfer(self.device, self.file_id, wall())

    def _refuse(self, action: Action, error: BadManifest | BundleConflict) -> FileResponse:
        """A manifest that is whole, but no good: sending it again would not help."""
        word, reason = error.reason if isinstance(error, BadManifest) else "bad_manifest", str(error)
        size = self._receiver.init.size if self._receiver.init is not None else 0
        topic = action.topic if isinstance(action, Confirm) else fin_topic(self.device, self.file_id, size)
        self._shelf.partials.discard(self.device, self.file_id)
        self._shelf.store.end_transfer(self.device, self.file_id, "refused", reason, wall())
        self._shelf.metrics.refused(word)
        self._receiver, self._unrecorded = self._new_receiver(None, (), self._shelf.store.has_blob(self.file_id)), ()
        said = manifest_refused(word).of(device=self.device, reason=word)
        _log.warning("a manifest of %s is refused: %s", self.device, reason, extra=said)
        return FileResponse(topic, FAILURE, f"{word}: {reason}"[:300])
