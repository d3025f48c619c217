"""Traps of file transfer over MQTT, each by its name: what brokers, restarts and old backups do to a transfer."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from pathlib import Path
from random import Random

import pytest

from integration.link_peer import CertificateAuthority, link, mosquitto, put_bundle
from tidegauge.link import mqtt
from tidegauge.link.commands import chunk_topic, fin_topic, init_topic, parse, response_topic
from tidegauge.link.receiver import Action, Confirm, Discard, Receiver, Respond, Verify, WriteChunk
from tidegauge.link.sender import PACKET_OVERHEAD, FileRef, Outgoing, Publish, SendChunk, Sender, SenderLimits
from tidegauge.link.shelf import outgoing
from tidegauge.link.transfer import FileTransfer
from tidegauge.link.wire import FileResponse, Init, encode
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.store import Spool

DEVICE = "cam-07"
DATA = bytes(range(256)) * 40
FILE = hashlib.sha256(DATA).hexdigest()
LIMITS = SpoolLimits(headroom_mib=0, headroom_files=0)


class Shell:
    """A receiver with its bytes; `keeps` False loses a stored file, as an older backup does."""

    def __init__(self, file: str = FILE) -> None:
        self.receiver, self.data, self.lost = Receiver(file), bytearray(), False
        self.writes = 0

    def handle(self, topic: str, payload: bytes, now: float = 0.0) -> list[FileResponse]:
        return self.carry_out(self.receiver.handle(topic, parse(topic).command, payload, now), now)

    def carry_out(self, actions: list[Action], now: float = 0.0) -> list[FileResponse]:
        answers, todo = list[FileResponse](), list(actions)
        while todo:
            match todo.pop(0):
                case Respond(response):
                    answers.append(response)
                case WriteChunk(topic, offset, piece):
                    self.writes += 1
                    self.data.extend(bytes(max(0, offset + len(piece) - len(self.data))))
                    self.data[offset : offset + len(piece)] = piece
                    todo[:0] = self.receiver.written(topic, offset, offset + len(piece), now)
                case Verify(sha256, _):
                    todo[:0] = self.receiver.verified(hashlib.sha256(self.data).hexdigest() == sha256)
                case Confirm(topic):
                    todo[:0] = self.receiver.lost(topic) if self.lost else self.receiver.confirmed(topic)
                    self.lost = False
                case Discard():
                    self.data.clear()
        return answers


def init(size: int = len(DATA), file: str = FILE) -> tuple[str, bytes]:
    return init_topic(DEVICE, file), encode(Init("blob", size, file))


def chunk(start: int, stop: int) -> tuple[str, bytes]:
    piece = DATA[start:stop]
    return chunk_topic(DEVICE, FILE, start, hashlib.sha256(piece).hexdigest()), piece


FIN = (fin_topic(DEVICE, FILE, len(DATA)), b"")


def test_fin_before_the_last_chunk_waits_for_it() -> None:
    shell = Shell()
    shell.handle(*init())
    shell.handle(*chunk(0, 5000))
    assert shell.handle(*FIN, now=1.0) == []
    answers = shell.handle(*chunk(5000, len(DATA)), now=2.0)
    assert [answer.stored for answer in answers] == [False, True]


def test_fin_without_the_last_chunk_names_what_is_missing() -> None:
    shell = Shell()
    shell.handle(*init())
    shell.handle(*chunk(0, 5000))
    shell.handle(*FIN, now=1.0)
    (answer,) = shell.carry_out(shell.receiver.tick(10.0))
    assert (answer.reason_description, answer.missing) == ("incomplete", ((5000, len(DATA)),))


def test_duplicates_of_chunk_and_fin_change_nothing() -> None:
    shell = Shell()
    shell.handle(*init())
    for _ in range(3):
        shell.handle(*chunk(0, len(DATA)))
    assert shell.writes == 1
    for _ in range(3):
        (answer,) = shell.handle(*FIN)
        assert answer.stored
    assert shell.handle(*chunk(0, 100))[0].reason_code == 0


def test_the_same_file_id_with_another_size_is_a_conflict() -> None:
    shell = Shell()
    shell.handle(*init())
    (answer,) = shell.handle(*init(size=len(DATA) + 1))
    assert answer.reason_description == "filemeta_conflict"


def test_the_same_file_id_with_other_bytes_is_never_stored() -> None:
    shell = Shell()
    shell.handle(*init())
    other = bytes(len(DATA))
    shell.handle(chunk_topic(DEVICE, FILE, 0, hashlib.sha256(other).hexdigest()), other)
    (answer,) = shell.handle(*FIN)
    assert answer.reason_description == "file_hash"
    assert not answer.stored
    assert shell.data == b""


def test_an_answer_goes_to_the_device_of_the_topic_and_no_other() -> None:
    """There is no response topic to be given by a sender: another device's can't be asked for."""
    found = parse(init_topic(DEVICE, FILE))
    assert response_topic(found.device) == f"tidegauge/v1/{DEVICE}/file-response"
    sender = Sender("cam-08", SenderLimits(), Random(1))
    sender.add(Outgoing("b", FileRef(FILE, 10, "blob")), 0.0)
    sender.connected(None, 0.0)
    assert sender.response(FileResponse(init_topic(DEVICE, FILE), 0, stored=True), 0.0) == []
    assert sender.active == "b"


def test_init_is_the_same_bytes_after_a_restart_and_a_jump_of_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_bundle(Spool(tmp_path, LIMITS), "bundle-0001", (100,))
    seen = set[bytes]()
    for now in (0.0, 4e9):
        monkeypatch.setattr("time.time", lambda now=now: now)
        (entry,) = Spool(tmp_path, LIMITS).pending()
        head = outgoing(entry).head
        (packet,) = FileTransfer(DEVICE, "b", head, SenderLimits(), Random(int(now))).start(4096)
        assert isinstance(packet, Publish)
        seen.add(packet.payload)
    assert len(seen) == 1


def test_a_collector_restored_from_an_older_backup_gets_all_of_it_again_in_one_resend() -> None:
    shell = Shell()
    for message in (init(), chunk(0, len(DATA)), FIN):
        shell.handle(*message)
    shell.lost = True  # the database says stored, the file is gone
    (answer,) = shell.handle(*FIN)
    assert (answer.reason_description, answer.missing) == ("incomplete", ((0, len(DATA)),))
    transfer = FileTransfer(DEVICE, "b", FileRef(FILE, len(DATA), "blob"), SenderLimits(chunk=4096), Random(1))
    transfer.start(4096)
    transfer.answer(parse(init()[0]).command, FileResponse(init()[0], 0, acked=((0, len(DATA)),)))
    again = transfer.answer(parse(FIN[0]).command, answer)
    sizes = [action.length for action in again if isinstance(action, SendChunk)]
    assert sum(sizes) == len(DATA)
    shell.handle(*chunk(0, len(DATA)))
    assert shell.handle(*FIN)[0].stored


def test_chunks_fit_what_the_broker_announces_in_connack(tmp_path: Path) -> None:
    async def test() -> int | None:
        async with (
            mosquitto(tmp_path, "max_packet_size 20000\n") as broker,
            mqtt.connect(link(broker.port, protocol="5"), "probe") as connection,
        ):
            return connection.max_packet

    announced = asyncio.run(test())
    assert announced == 20_000
    sender = Sender(DEVICE, SenderLimits(), Random(1))
    sender.add(Outgoing("b", FileRef(FILE, 1 << 20, "blob")), 0.0)
    sender.connected(announced, 0.0)
    out = sender.response(FileResponse(init_topic(DEVICE, FILE), 0), 0.0)
    assert {action.length for action in out if isinstance(action, SendChunk)} == {20_000 - PACKET_OVERHEAD}


@pytest.mark.parametrize("tls", [False, True])
def test_no_packet_waits_for_nagles_algorithm(tmp_path: Path, tls: bool) -> None:
    """Without TCP_NODELAY each packet over TLS with one in flight waits some 40 ms."""
    ca = ""
    if tls:
        CertificateAuthority(tmp_path).issue("server", "127.0.0.1")
        ca = str(tmp_path / "ca.pem")
    files = f"cafile {ca}\ncertfile {tmp_path}/server.pem\nkeyfile {tmp_path}/server.key\n" if tls else ""

    async def test() -> int:
        async with (
            mosquitto(tmp_path, files) as broker,
            mqtt.connect(link(broker.port, ca=ca), "probe") as connection,
        ):
            sock = connection._paho.socket()
            assert isinstance(sock, socket.socket)
            return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    assert asyncio.run(test()) != 0


def test_an_answer_of_nonsense_ends_nothing() -> None:
    sender = Sender(DEVICE, SenderLimits(), Random(1))
    sender.add(Outgoing("b", FileRef(FILE, 10, "blob")), 0.0)
    sender.connected(None, 0.0)
    for topic in ("", "x" * 1000, "tidegauge/v1/cam-07/file/../init", fin_topic(DEVICE, "ab" * 32, 10)):
        assert sender.response(FileResponse(topic, 0, stored=True), 0.0) == []
    assert sender.active == "b"


def test_the_next_blob_goes_while_the_last_one_is_being_stored_within_one_window() -> None:
    """A collector's disk is slower than its link: no blob waits for the sync of another, and four at most are open."""
    blobs = {hashlib.sha256(data).hexdigest(): data for data in (bytes([number]) * 16_384 for number in range(5))}
    parts = {name: FileRef(name, len(data), name, {"kind": "blob"}) for name, data in blobs.items()}
    sender = Sender(DEVICE, SenderLimits(chunk=4096, window=6), Random(1))
    actions = [*sender.add(Outgoing("b", FileRef(FILE, 10, "manifest.json"), parts), 0.0), *sender.connected(None, 0.0)]

    def answer(topic: str, **fields: object) -> list[object]:
        return list(sender.response(FileResponse(topic, 0, **fields), 0.0))  # type: ignore[arg-type]

    assert [each.topic for each in actions if isinstance(each, Publish)] == [init_topic(DEVICE, FILE)]
    wanted = str(answer(init_topic(DEVICE, FILE), stored=True, wanted=tuple(blobs)))
    first, second, third, fourth, fifth = blobs
    assert [name for name in blobs if init_topic(DEVICE, name) in wanted] == [first, second], "the next one asks ahead"
    out = answer(init_topic(DEVICE, second))
    assert not any(isinstance(each, SendChunk) for each in out), "and waits for its turn"
    sent = [each for each in answer(init_topic(DEVICE, first)) if isinstance(each, SendChunk | Publish)]
    chunks = [each.file_id for each in sent if isinstance(each, SendChunk)]
    assert chunks == [first] * 4 + [second] * 2 and sender.in_flight == 6 * 4096  # one window for both
    assert fin_topic(DEVICE, first, 16_384) in str(sent) and init_topic(DEVICE, third) in str(sent)
    digest = hashlib.sha256(blobs[first][:4096]).hexdigest()
    out = answer(chunk_topic(DEVICE, first, 0, digest), acked=((0, 16_384),))
    assert sum(isinstance(each, SendChunk) for each in out) == 2  # of the second, by what the first has made free
    assert init_topic(DEVICE, fourth) in str(out)
    answer(init_topic(DEVICE, third))
    answer(init_topic(DEVICE, fourth))
    out = answer(chunk_topic(DEVICE, second, 0, digest), acked=((0, 16_384),))
    assert fin_topic(DEVICE, third, 16_384) in str(out)
    assert init_topic(DEVICE, fifth) not in str(out), "four are open"
    assert init_topic(DEVICE, fifth) in str(answer(fin_topic(DEVICE, first, 16_384), stored=True))
