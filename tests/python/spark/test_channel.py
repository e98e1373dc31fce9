"""The connection between the driver and its tasks: nobody without the key gets in."""
import contextlib
import os
import socket
import threading

import pytest

pytest.importorskip("pyspark")

from horovod.runner import _channel  # noqa: E402

KEY = b"k" * 32


class Tap:
    """A socket that keeps what is sent."""

    def __init__(self, sent):
        self.sendall = sent.extend

    def close(self):
        pass

    def shutdown(self, how):
        pass


@contextlib.contextmanager
def pair(server_key=KEY, client_key=KEY):
    """Both ends; an end that was refused is the exception."""
    listener = socket.create_server(("127.0.0.1", 0))
    ends = {}

    def serve():
        sock, _ = listener.accept()
        try:
            ends["server"] = _channel.accept(sock, server_key)
        except _channel.ChannelClosed as e:
            ends["server"] = e
            sock.close()
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        ends["client"] = _channel.connect(listener.getsockname(), client_key, 10)
    except _channel.ChannelClosed as e:
        ends["client"] = e
    thread.join()
    yield ends["server"], ends["client"]
    for end in (*ends.values(), listener):
        if hasattr(end, "close"):
            end.close()


def test_messages_of_any_size():
    with pair() as (server, client):
        data = os.urandom((3 << 20) + 17)
        thread = threading.Thread(target=client.send, args=("result", data), kwargs={"code": 3})
        thread.start()
        head, body = server.receive()
        thread.join()
        assert (head["kind"], head["code"], body) == ("result", 3, data)
        server.send("empty")
        assert client.receive()[0]["kind"] == "empty"


@pytest.mark.parametrize("keys", [(KEY, b"x" * 32), (b"x" * 32, KEY)])
def test_who_does_not_know_the_key_is_refused(keys):
    with pair(*keys) as (server, client):
        assert isinstance(server, _channel.ChannelClosed)
        assert isinstance(client, _channel.ChannelClosed)


def test_a_client_refuses_a_server_that_repeats_its_proof():
    """A server without the key can only send back what it has seen."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        sock, _ = listener.accept()
        with sock:
            sock.sendall(_channel.MAGIC + bytes(32))
            proof = _channel.read_exactly(sock, 64)[32:]
            sock.sendall(proof)
    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(_channel.ChannelClosed, match="does not know the job's key"):
        _channel.connect(listener.getsockname(), KEY, 10)
    thread.join()
    listener.close()


@pytest.mark.parametrize("place", [5, -1])
def test_a_changed_frame_ends_the_connection(place):
    with pair() as (server, client):
        sent = bytearray()
        client._socket = Tap(sent)
        client.send("start", b"function")
        sent[place] ^= 1
        ours, theirs = socket.socketpair()
        server._socket = ours
        theirs.sendall(sent)
        with pytest.raises((_channel.ChannelClosed, ValueError)):
            server.receive()
        theirs.close()


def test_a_frame_cannot_be_repeated():
    with pair() as (server, client):
        sent = bytearray()
        client._socket = Tap(sent)
        client.send("exit")
        ours, theirs = socket.socketpair()
        server._socket = ours
        theirs.sendall(sent + sent)
        assert server.receive()[0]["kind"] == "exit"
        with pytest.raises(_channel.ChannelClosed, match="changed"):
            server.receive()
        theirs.close()


def test_a_frame_is_bounded_before_it_is_read():
    with pair() as (server, client):
        client._socket.sendall(b"\xff\xff\xff\x7f")
        with pytest.raises(_channel.ChannelClosed, match="a frame of"):
            server.receive()


def test_a_stranger_that_sends_byte_after_byte_has_no_more_time(monkeypatch):
    monkeypatch.setattr(_channel, "PROOF_S", 0.5)
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def drip():
        while not stop.wait(0.05):
            try:
                theirs.send(b"x")
            except OSError:
                return
    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(_channel.ChannelClosed):
        _channel.accept(ours, KEY)
    stop.set()
    thread.join()
    ours.close()
    theirs.close()


def test_derived_keys_differ_by_purpose():
    assert len({_channel.derive(KEY, "a"), _channel.derive(KEY, "b"), KEY}) == 3
