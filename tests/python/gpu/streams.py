"""Device memory and streams for tests, without a GPU: two kinds with the same methods.

``Late``     memory of this process; a stream is a queue.  Nothing runs before somebody waits, and
             then in an order drawn by seed, so that whatever is not ordered comes too late.
``StandIn``  memory and streams of the CUDA driver's stand-in (tests/gpu), which the core uses too.

    alloc(device, nbytes) -> address         free(address)
    stream(device) -> number                 sync(stream): waits for all of it
    read(stream, host, address, nbytes)      queued: device to host
    write(stream, address, host, nbytes)     queued: host to device
    order(stream, after): what is queued on `stream` from now on follows what `after` has now
"""
import collections
import ctypes
import os
import random
import threading


class Late:
    def __init__(self, seed=0):
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._blocks = {}                   # address -> memory
        self._freed = []
        self._queues = {}                   # stream -> [what is left]
        self._done = collections.Counter()  # stream -> how many have run
        self._put = collections.Counter()

    def alloc(self, device, nbytes):
        block = ctypes.create_string_buffer(max(1, nbytes))
        address = ctypes.addressof(block)
        self._blocks[address] = block
        return address

    def free(self, address):
        """Stays mapped: what still uses it finds rubbish and does not crash."""
        self._freed.append(self._blocks.pop(address))

    def stream(self, device):
        number = 1 + len(self._queues)
        self._queues[number] = collections.deque()
        return number

    def read(self, stream, host, address, nbytes):
        self._enqueue(stream, None, lambda: ctypes.memmove(host, address, nbytes))

    def write(self, stream, address, host, nbytes):
        self._enqueue(stream, None, lambda: ctypes.memmove(address, host, nbytes))

    def order(self, stream, after):
        self._enqueue(stream, (after, self._put[after]), lambda: None)

    def _enqueue(self, stream, condition, action):
        with self._lock:
            self._queues[stream].append((condition, action))
            self._put[stream] += 1

    def sync(self, stream):
        with self._lock:
            target = self._put[stream]
            while self._done[stream] < target:
                self._run_one()

    def _run_one(self):
        ready = [s for s, queue in self._queues.items() if queue and self._may_run(queue[0][0])]
        chosen = self._random.choice(ready)
        _, action = self._queues[chosen].popleft()
        action()
        self._done[chosen] += 1

    def _may_run(self, condition):
        return condition is None or self._done[condition[0]] >= condition[1]


class StandIn:
    def __init__(self, path=None):
        self._library = ctypes.CDLL(path or os.environ["HOROVOD_CUDART_LIBRARY"])
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        for name, result, arguments in [
                ("alloc", pointer, [number, size]), ("free", None, [pointer]),
                ("stream_new", pointer, [number]), ("stream_sync", None, [pointer]),
                ("stream_read", None, [pointer, pointer, pointer, size]),
                ("stream_write", None, [pointer, pointer, pointer, size])]:
            function = getattr(self._library, f"standin_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, f"_{name}", function)

    def alloc(self, device, nbytes):
        return self._alloc(device, max(1, nbytes))

    def free(self, address):
        self._free(address)

    def stream(self, device):
        return self._stream_new(device)

    def sync(self, stream):
        self._stream_sync(stream)

    def read(self, stream, host, address, nbytes):
        self._stream_read(stream, host, address, nbytes)

    def write(self, stream, address, host, nbytes):
        self._stream_write(stream, address, host, nbytes)

    def order(self, stream, after):
        self.sync(after)
