"""A connection whose two ends have proved that they know a key, for messages of any size.

Who connects is the client.  All integers are little endian.

    server -> client    8 bytes "HVDCHAN1", 32 random bytes S
    client -> server    32 random bytes C, HMAC(key, "client" S C)
    server -> client    HMAC(key, "server" S C)
    then frames         u32 n | n bytes | HMAC(k, u64 number of the frame | n bytes)

1. HMAC is HMAC-SHA256; k is HMAC(key, "from client" S C) or HMAC(key, "from server" S C), so
   that no frame can be repeated, left out, sent back or carried to another connection.
2. Before the proof nothing of variable length is read, and a stranger has PROOF_S seconds.
3. A message is a frame with JSON ({"kind": ..., "bytes": n, ...}), then its n bytes in frames
   of at most FRAME bytes.  Nothing is unpickled here.
4. What is sent is authenticated, not encrypted.
"""
import hashlib
import hmac
import json
import os
import socket
import struct
import threading
import time
from typing import Any, Callable, Optional

MAGIC = b"HVDCHAN1"
NONCE = DIGEST = 32
FRAME = 1 << 20
PROOF_S = 10.0
BODY_LIMIT = 1 << 36            # 64 GiB: beyond any sensible function or result


class ChannelClosed(ConnectionError):
    """The other end has gone."""


def _mac(key: bytes, *parts: Any) -> bytes:
    state = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        state.update(part)
    return state.digest()


def derive(key: bytes, purpose: str) -> bytes:
    """A key for one purpose: knowing it does not tell the key it comes from."""
    return _mac(key, b"horovod key for ", purpose.encode())


class Channel:
    """One proved connection.  Any thread may send; one at a time may receive."""

    def __init__(self, sock: socket.socket, send_key: bytes, receive_key: bytes) -> None:
        self._socket = sock
        self._send_key, self._receive_key = send_key, receive_key
        self._sent = self._received = 0
        self._lock = threading.Lock()               # guards _sent, and whole messages
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A host that vanishes is noticed after 10 + 5 * 4 s, also when nothing is sent.
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 4),
                              (socket.TCP_KEEPCNT, 5), (socket.TCP_USER_TIMEOUT, 30000)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def fileno(self) -> int:
        """The descriptor, readable when a message is coming."""
        return self._socket.fileno()

    def own_address(self) -> str:
        """The address by which this end is reached."""
        return self._socket.getsockname()[0]

    def close(self) -> None:
        """Ends the connection for both ends, also for a thread that receives."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()

    def send(self, kind: str, body: Any = b"", **head: Any) -> None:
        """A message.  ChannelClosed: the other end has gone."""
        view = memoryview(body)
        text = json.dumps(dict(head, kind=kind, bytes=len(view))).encode()
        try:
            with self._lock:
                self._send_frame(text)
                for at in range(0, len(view), FRAME):
                    self._send_frame(view[at:at + FRAME])
        except OSError as e:
            raise ChannelClosed(str(e)) from None

    def _send_frame(self, data: Any) -> None:
        mac = _mac(self._send_key, struct.pack("<Q", self._sent), data)
        self._sent += 1
        self._socket.sendall(struct.pack("<I", len(data)))
        self._socket.sendall(data)
        self._socket.sendall(mac)

    def receive(self, sink: Optional[Callable[[bytes], Any]] = None) -> tuple[dict, bytes]:
        """(head, body) of the next message; with a sink, the body goes there in parts."""
        head = json.loads(self._receive_frame())
        if not 0 <= head["bytes"] <= BODY_LIMIT:
            raise ChannelClosed(f"a message of {head['bytes']} bytes")
        parts = bytearray()
        take = sink if sink is not None else parts.extend
        left = head["bytes"]
        while left > 0:
            frame = self._receive_frame()
            left -= len(frame)
            take(frame)
        return head, bytes(parts)

    def _receive_frame(self) -> bytes:
        count, = struct.unpack("<I", read_exactly(self._socket, 4))
        if count > FRAME:
            raise ChannelClosed(f"a frame of {count} bytes")
        data = read_exactly(self._socket, count)
        mac = read_exactly(self._socket, DIGEST)
        wanted = _mac(self._receive_key, struct.pack("<Q", self._received), data)
        if not hmac.compare_digest(mac, wanted):
            raise ChannelClosed("a frame was changed on its way")
        self._received += 1
        return data


def read_exactly(sock: socket.socket, count: int, deadline: Optional[float] = None) -> bytes:
    """So many bytes.  ChannelClosed: there are not as many, or not in time."""
    data = bytearray(count)
    view, got = memoryview(data), 0
    try:
        while got < count:
            if deadline is not None:
                sock.settimeout(max(0.001, deadline - time.monotonic()))
            step = sock.recv_into(view[got:])
            if step == 0:
                raise ChannelClosed("the other end has closed the connection")
            got += step
    except OSError as e:
        raise e if isinstance(e, ChannelClosed) else ChannelClosed(str(e)) from None
    return bytes(data)


def accept(sock: socket.socket, key: bytes) -> Channel:
    """The server's end.  ChannelClosed: the peer does not know the key, or is too slow."""
    sock.settimeout(PROOF_S)
    mine, deadline = os.urandom(NONCE), time.monotonic() + PROOF_S
    try:
        sock.sendall(MAGIC + mine)
        theirs = read_exactly(sock, NONCE, deadline)
        proof = read_exactly(sock, DIGEST, deadline)
        if not hmac.compare_digest(proof, _mac(key, b"client", mine, theirs)):
            raise ChannelClosed("the peer does not know the key of this job")
        sock.sendall(_mac(key, b"server", mine, theirs))
    except OSError as e:
        raise e if isinstance(e, ChannelClosed) else ChannelClosed(str(e)) from None
    return Channel(sock, _mac(key, b"from server", mine, theirs),
                   _mac(key, b"from client", mine, theirs))


def connect(address: tuple[str, int], key: bytes, limit_s: float) -> Channel:
    """The client's end.  ChannelClosed: nobody answers, or does not know the key."""
    try:
        sock = socket.create_connection(address, timeout=limit_s)
    except OSError as e:
        raise ChannelClosed(f"cannot reach {address[0]} port {address[1]}: {e}") from None
    try:
        sock.settimeout(PROOF_S)
        if read_exactly(sock, len(MAGIC)) != MAGIC:
            raise ChannelClosed(f"{address[0]} port {address[1]} is not a service of Horovod")
        theirs, mine = read_exactly(sock, NONCE), os.urandom(NONCE)
        sock.sendall(mine + _mac(key, b"client", theirs, mine))
        if not hmac.compare_digest(read_exactly(sock, DIGEST),
                                   _mac(key, b"server", theirs, mine)):
            raise ChannelClosed(f"{address[0]} port {address[1]} does not know the job's key")
        return Channel(sock, _mac(key, b"from client", theirs, mine),
                       _mac(key, b"from server", theirs, mine))
    except BaseException as e:
        sock.close()
        if isinstance(e, OSError) and not isinstance(e, ChannelClosed):
            raise ChannelClosed(str(e)) from None
        raise
