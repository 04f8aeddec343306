"""A broker of Kafka on a port of this machine, for as long as a block runs.

It is the mock cluster of librdkafka, in this process: real requests over TCP, up to 5 MB of batches
for each partition, of which the oldest expire. It keeps the times of messages and finds no offset
by them, which :func:`broker_with_times` does. It knows no passwords and no transactions: their
marks are put into its log here, and :func:`refusing_broker` asks for passwords.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_LIMIT_S = 30.0
_PRODUCE, _LIST_OFFSETS, _METADATA, _HANDSHAKE, _VERSIONS, _AUTHENTICATE = 0, 2, 3, 17, 18, 36
_COORDINATOR = 10
_WRONG_PASSWORD = 58


@dataclasses.dataclass
class KafkaBroker:
    """A broker, and a producer that writes to it. A topic has four partitions once it is written.

    Attributes:
        address: host and port.
        producer: the broker ends with it.
    """

    address: str
    producer: Any

    def options(self, topic: str, **more: str) -> dict[str, str]:
        """Return the options with which the source reads a topic from its beginning."""
        servers = {"kafka.bootstrap.servers": self.address, "subscribe": topic}
        return {**servers, "startingOffsets": "earliest", **more}

    def send(
        self, topic: str, values: Iterable[bytes | None], partition: int = 0, **more: Any
    ) -> None:
        """Write messages, and wait until the broker has them."""
        for value in values:
            while True:
                try:
                    self.producer.produce(topic, value=value, partition=partition, **more)
                    break
                except BufferError:
                    self.producer.poll(0.1)
        assert self.producer.flush(_LIMIT_S) == 0

    def send_mark(self, topic: str, partition: int = 0) -> None:
        """Write the mark that ends a transaction: it takes an offset, and no reader gets it."""
        batch = _commit_mark()
        body = struct.pack(">hhi", -1, 1, 5000) + struct.pack(">i", 1) + _text(topic)
        body += struct.pack(">iii", 1, partition, len(batch)) + batch
        header = struct.pack(">hhi", _PRODUCE, 7, 1) + _text("marks")
        host, _, port = self.address.rpartition(":")
        with socket.create_connection((host, int(port)), _LIMIT_S) as connection:
            connection.sendall(struct.pack(">i", len(header + body)) + header + body)
            answer = _read(connection)
        (error,) = struct.unpack_from(">h", answer, 4 + 4 + len(_text(topic)) + 4 + 4)
        assert 0 == error


@contextlib.contextmanager
def kafka_broker() -> Iterator[KafkaBroker]:
    """Run a broker with one node."""
    producer = Producer(
        {
            "bootstrap.servers": "",
            "test.mock.num.brokers": 1,
            "log_level": 3,
            "linger.ms": 5,
            "compression.type": "lz4",
            "batch.num.messages": 10_000,
        }
    )
    metadata = producer.list_topics(timeout=_LIMIT_S)
    address = ",".join(f"{node.host}:{node.port}" for node in metadata.brokers.values())
    yield KafkaBroker(address, producer)


@contextlib.contextmanager
def broker_with_times(
    broker: KafkaBroker, times: Mapping[tuple[str, int], Sequence[int]]
) -> Iterator[KafkaBroker]:
    """Run what stands before a broker and looks offsets up by time, as a broker of Kafka does.

    Args:
        broker: has the messages.
        times: of the messages of each topic and partition, in milliseconds, in their order.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = "127.0.0.1", server.getsockname()[1]
        threading.Thread(target=_pass_all_on, args=(server, broker, times), daemon=True).start()
        yield dataclasses.replace(broker, address=f"{host}:{port}")


def _pass_all_on(
    server: socket.socket, broker: KafkaBroker, times: Mapping[tuple[str, int], Sequence[int]]
) -> None:
    host, _, port = broker.address.rpartition(":")
    its_own, ours = (struct.pack(">i", each) for each in (int(port), server.getsockname()[1]))

    def pass_on(client: socket.socket) -> None:
        with (
            client,
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port))) as up,
        ):
            while True:
                request = _read(client)
                up.sendall(struct.pack(">i", len(request)) + request)
                answer = _read(up)
                key, version = struct.unpack_from(">hh", request)
                if key in {_METADATA, _COORDINATOR}:  # which say where the broker is
                    answer = answer.replace(host.encode() + its_own, host.encode() + ours)
                if key == _LIST_OFFSETS:
                    answer = _with_times(request, answer, version, times)
                client.sendall(struct.pack(">i", len(answer)) + answer)

    with contextlib.suppress(OSError):  # the block has ended
        while True:
            connection, _ = server.accept()
            threading.Thread(target=pass_on, args=(connection,), daemon=True).start()


def _with_times(
    request: bytes, answer: bytes, version: int, times: Mapping[tuple[str, int], Sequence[int]]
) -> bytes:
    """Put the offsets of times that are asked for into the answer of a broker without them.

    Both have a list of topics with a list of partitions each; a length is one more than it says,
    and one byte, as there are few.
    """
    assert version in {6, 7}, version  # the form that is read here
    (name,) = struct.unpack_from(">h", request, 8)
    asked, answered, found = 10 + name + 1 + 4 + 1, 4 + 1 + 4, bytearray(answer)
    topics, asked, answered = request[asked] - 1, asked + 1, answered + 1
    for _ in range(topics):
        length = request[asked] - 1
        topic = request[asked + 1 : asked + 1 + length].decode()
        asked, answered = asked + 1 + length, answered + 1 + length
        partitions, asked, answered = request[asked] - 1, asked + 1, answered + 1
        for _ in range(partitions):
            partition, _, wanted_ms = struct.unpack_from(">iiq", request, asked)
            if wanted_ms >= 0:
                there = enumerate(times.get((topic, partition), ()))
                hit = next(((at, n) for n, at in there if at >= wanted_ms), (-1, -1))
                struct.pack_into(">ihqq", found, answered, partition, 0, *hit)
            asked, answered = asked + 16 + 1, answered + 26 + 1
        asked, answered = asked + 1, answered + 1
    return bytes(found)


@contextlib.contextmanager
def refusing_broker() -> Iterator[str]:
    """Run what answers every user that the password is wrong; give its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_refuse_all, args=(server,), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def _refuse_all(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the block has ended
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_refuse, args=(connection,), daemon=True).start()


def _refuse(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError, struct.error):
        while True:
            request = _read(connection)
            key, version, number = struct.unpack_from(">hhi", request)
            body = struct.pack(">i", number) + _answer(key, version)
            connection.sendall(struct.pack(">i", len(body)) + body)


def _answer(key: int, version: int) -> bytes:
    if key == _VERSIONS:
        known = [(_METADATA, 1), (_HANDSHAKE, 1), (_VERSIONS, 3), (_AUTHENTICATE, 0)]
        if version < 3:
            return struct.pack(">hi", 0, len(known)) + b"".join(
                struct.pack(">hhh", k, 0, v) for k, v in known
            )
        found = b"".join(struct.pack(">hhhB", k, 0, v, 0) for k, v in known)
        return struct.pack(">hB", 0, len(known) + 1) + found + struct.pack(">iB", 0, 0)
    if key == _HANDSHAKE:
        return struct.pack(">hi", 0, 1) + _text("PLAIN")
    assert key == _AUTHENTICATE
    return struct.pack(">h", _WRONG_PASSWORD) + _text("no such user or password") + b"\0\0\0\0"


def _read(connection: socket.socket) -> bytes:
    """Return the next message of the protocol, without its length."""
    (length,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        part = connection.recv(length - len(found))
        if not part:
            raise ConnectionResetError
        found += part
    return found


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _commit_mark() -> bytes:
    """Return a batch of Kafka's format 2 with one control record, the commit of a transaction."""
    record = (
        b"\0\0\0" + b"\x08" + struct.pack(">hh", 0, 1) + b"\x0c" + struct.pack(">hi", 0, 0) + b"\0"
    )
    records = bytes([2 * len(record)]) + record  # a length as a zigzag varint
    transactional, control = 0x10, 0x20
    after = struct.pack(">hiqqqhii", transactional | control, 0, 0, 0, 7, 0, -1, 1) + records
    batch = struct.pack(">ibI", 0, 2, _crc32c(after)) + after
    return struct.pack(">qi", 0, len(batch)) + batch


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
