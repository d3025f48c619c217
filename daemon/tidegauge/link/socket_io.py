"""How paho's socket meets the event loop, in place of aiomqtt's way of it.

aiomqtt asks the loop to watch a socket for writing each time a packet is queued, by its number, some time later: where
the connection was lost meanwhile, the number is no socket's any more, or another's. paho copies the whole rest of a
packet for each part of it that the socket takes, which under TLS is 16 KiB at a time. Here packets are written when the
loop's turn ends, all that are queued by then, from where they lie; the loop watches the socket only while it is full.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from typing import Any

from paho.mqtt.client import Client as Paho

#: What one TLS record holds, bytes. Neither a read nor a write of the socket takes more.
TLS_RECORD = 16 * 1024


def install(paho: Paho, loop: asyncio.AbstractEventLoop, failed: Callable[[Exception], None]) -> None:
    """Take over the writing of `paho`, which belongs to `loop`, whose thread calls this. `failed`: hears of an error
    of the socket that paho has not turned into a disconnect.
    """
    client: Any = paho  # its private parts, for which it has no types
    home = threading.get_ident()
    queue, receive, send = client._packet_queue, client._sock_recv, client._sock_send

    def enqueue(command: int, packet: bytes, mid: int, qos: int, info: object = None) -> object:
        return queue(command, memoryview(packet), mid, qos, info)

    def receive_records(size: int) -> object:
        """All records that are there, where paho takes one a turn and makes room for the whole packet each time."""
        sock = client._sock
        first = receive(min(size, TLS_RECORD) if isinstance(sock, ssl.SSLSocket) else size)
        if size <= TLS_RECORD or len(first) != TLS_RECORD:
            return first
        found, have = memoryview(bytearray(size)), len(first)
        found[:have] = first
        try:
            while have < size and (count := sock.recv_into(found[have:])):
                have += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass  # no more now; at its end or an error the next call says so
        return found[:have]

    def send_records(packet: memoryview) -> object:
        sent = send(packet)
        try:
            while 0 < sent < len(packet) and isinstance(client._sock, ssl.SSLSocket):
                sent += client._sock.send(packet[sent:])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass  # the loop tells when there is room
        return sent

    def register(_client: object, _data: object, sock: Any) -> None:
        if threading.get_ident() == home:
            loop.call_soon(write, sock)
        else:  # CONNECT, which the library sends from a thread
            loop.call_soon_threadsafe(write, sock)

    def write(sock: Any) -> None:
        try:
            paho.loop_write()  # nothing, where the socket was closed meanwhile
        except Exception as error:  # noqa: BLE001 # whatever it is, this connection is over
            failed(error)
            return
        if client._sock is sock and paho.want_write():
            loop.add_writer(sock.fileno(), write, sock)

    def unregister(_client: object, _data: object, sock: Any) -> None:
        if sock.fileno() >= 0:
            loop.remove_writer(sock.fileno())

    client._packet_queue = enqueue
    client._sock_recv, client._sock_send = receive_records, send_records
    paho.on_socket_register_write = register
    paho.on_socket_unregister_write = unregister
