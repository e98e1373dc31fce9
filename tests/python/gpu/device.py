"""torch tensors on a device that this machine does not have.

``Device.installed()`` is a context in which ``device="cuda"`` works: such a tensor
(``DeviceTensor``) has its values in the memory of ``streams``, not in torch's.  Every operation
on it reads its inputs in the order of the stream that is current in the calling thread,
computes on the CPU, and queues the results on that stream.  A wrong order between streams
therefore gives wrong values, as on a GPU.

1. The shadow (``inner``) is a CPU tensor of the same form; it holds scratch values only.
2. Memory is given back as torch's allocator does it: it may be written again (here: with rubbish)
   as soon as the stream that it was allocated on comes by, and those of record_stream.
3. Copies between host and device run late if they are non_blocking and the host memory is pinned.
4. A sparse tensor holds its values in the shadow; its indices and values become real when they are
   taken out of it.
5. With ``everything=True`` tensors are on the device unless they say "cpu", as with
   torch.set_default_device("cuda").
"""
import collections
import contextlib
import ctypes
import threading
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_flatten, tree_map

RUBBISH = 0xa5
SOME = 32                   # pieces of memory that are given back at once
OVERWRITE = (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)
_device = None              # the one that is installed


class Stream:
    """As torch.cuda.Stream."""

    def __init__(self, device=None, number=None):
        self.device = torch.device("cuda", _index(device))
        self.cuda_stream = _device.streams.stream(self.device.index) if number is None \
            else number
        self.kept = []              # what late copies use
        self.captures = False

    def synchronize(self):
        _device.streams.sync(self.cuda_stream)
        self.kept.clear()

    def wait_stream(self, other):
        _device.streams.order(self.cuda_stream, other.cuda_stream)


class Memory:
    """A piece of device memory."""

    def __init__(self, index, nbytes, address=None, owner=None):
        self.index, self.nbytes, self.owner = index, nbytes, owner
        self.address = _device.streams.alloc(index, nbytes) if address is None else address
        self.stream = _device.current(index)
        self.users = set()
        self.device = _device

    def __del__(self):
        self.device.dead.append((self.address, self.nbytes, self.stream, self.users, self.owner))


def _extent(tensor):
    """(first byte, end) of what a tensor covers of its storage."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return 0, 0
    item, first = tensor.element_size(), tensor.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    return first * item, (last + 1) * item


def _is_fresh(func):
    """Whether the result of an operation has no values yet."""
    return "empty" in func._schema.name


def _is_view(func):
    aliases = [a.alias_info for a in func._schema.arguments]
    return any(a is not None for a in aliases) and not any(a and a.is_write for a in aliases)


class DeviceTensor(torch.Tensor):
    """Looks like a CUDA tensor to Python; torch's C++ takes it for one of the CPU."""

    @staticmethod
    def __new__(cls, inner, memory):
        form = dict(dtype=inner.dtype, layout=inner.layout, device="cpu")
        if inner.layout is torch.strided:
            form.update(strides=inner.stride(), storage_offset=inner.storage_offset())
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), **form)

    def __init__(self, inner, memory):
        self.inner, self.memory = inner, memory

    device = property(lambda self: torch.device("cuda", self.memory.index))
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    data = property(lambda self: DeviceTensor(self.inner, self.memory),
                    lambda self, other: self._become(other))

    def _become(self, other):
        self.inner, self.memory = other.inner, other.memory

    def data_ptr(self):
        return self.memory.address + _extent(self.inner)[0] if self.numel() else 0

    def record_stream(self, stream):
        if stream is not self.memory.stream:
            self.memory.users.add(stream)

    def is_pinned(self, *_):
        return False

    def tolist(self):
        return _device.fetch(self).tolist()

    def __deepcopy__(self, memo):
        made = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            made = torch.nn.Parameter(made, self.requires_grad)
        memo[id(self)] = made
        return made

    def numpy(self, *_, **__):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __repr__(self, **_):
        return f"DeviceTensor({_device.fetch(self)}, {self.device})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _device.run(func, args, dict(kwargs or {}))


class Device:
    """The devices, their streams, and what torch is told about them."""

    def __init__(self, streams, everything=False):
        self.streams = streams
        self.everything = everything
        self.dead = collections.deque()
        self.pinned = set()             # addresses of storages
        self.recorded = []              # streams that were asked for
        self._defaults = {}
        self._local = threading.local()

    # -- torch.cuda -----------------------------------------------------------------

    def current(self, device=None):
        index = _index(device)
        chosen = getattr(self._local, "streams", {}).get(index)
        if chosen is None:
            chosen = self._defaults.get(index)
            if chosen is None:
                chosen = self._defaults[index] = Stream(index)
        return chosen

    def current_stream(self, device=None):
        stream = self.current(device)
        self.recorded.append((threading.get_ident(), stream))
        return stream

    @contextlib.contextmanager
    def on(self, stream):
        """torch.cuda.stream"""
        table = self._local.__dict__.setdefault("streams", {})
        before = table.get(stream.device.index)
        table[stream.device.index] = stream
        try:
            yield
        finally:
            table[stream.device.index] = before

    @contextlib.contextmanager
    def installed(self):
        global _device
        before, _device = _device, self
        replaced = {"current_stream": self.current_stream, "stream": self.on, "Stream": Stream,
                    "is_current_stream_capturing": lambda: self.current().captures,
                    "is_available": lambda: True, "device_count": lambda: 2}
        with contextlib.ExitStack() as stack:
            for name, value in replaced.items():
                stack.enter_context(mock.patch.object(torch.cuda, name, value))
            stack.enter_context(_Functions(self))
            torch.__future__.set_overwrite_module_params_on_conversion(True)
            try:
                yield self
            finally:
                torch.__future__.set_overwrite_module_params_on_conversion(False)
                self.bury()
                _device = before

    # -- memory -----------------------------------------------------------------------

    def bury(self):
        """Rule 2."""
        dead, self.dead = self.dead, collections.deque()
        rubbish = ctypes.create_string_buffer(
            bytes([RUBBISH]) * max([1, *(nbytes for _, nbytes, *_ in dead)]))
        for user in {user for *_, users, _ in dead for user in users}:
            user.synchronize()
        for address, nbytes, stream, _, owner in dead:
            if owner is None and nbytes > 0:
                self.streams.write(stream.cuda_stream, address, ctypes.addressof(rubbish), nbytes)
        for stream in {stream for _, _, stream, *_ in dead}:
            stream.synchronize()
        for address, _, _, _, owner in dead:
            if owner is None:
                self.streams.free(address)
            else:
                owner()

    def put(self, inner, index):
        """A new device tensor with the values of a CPU tensor."""
        memory = Memory(index, inner.untyped_storage().nbytes())
        result = DeviceTensor(inner, memory)
        self._store(result)
        return result

    def _store(self, tensor, host=None):
        """Queues the shadow's values, or those of pinned memory, for the device."""
        first, end = _extent(tensor.inner)
        if end == first:
            return
        stream = self.current(tensor.memory.index)
        address = tensor.inner.untyped_storage().data_ptr() + first
        if host is None:
            copy = ctypes.create_string_buffer(ctypes.string_at(address, end - first), end - first)
            address = ctypes.addressof(copy)
            stream.kept.append(copy)
        else:
            address = host.data_ptr()
            stream.kept.append(host)
        stream.kept.append(tensor.memory)
        self.streams.write(stream.cuda_stream, tensor.memory.address + first, address, end - first)

    def _load(self, *tensors):
        """Brings the values to the shadows, in the order of the current stream."""
        parts = []
        for tensor in tensors:
            first, end = _extent(tensor.inner)
            if end == first:
                continue
            stream = self.current(tensor.memory.index)
            scratch = ctypes.create_string_buffer(end - first)
            self.streams.read(stream.cuda_stream, ctypes.addressof(scratch),
                              tensor.memory.address + first, end - first)
            parts.append((stream, tensor.inner.untyped_storage().data_ptr() + first, scratch))
        for stream in {stream for stream, _, _ in parts}:
            stream.synchronize()
        for _, address, scratch in parts:
            ctypes.memmove(address, scratch, len(scratch))

    def fetch(self, tensor):
        """A CPU tensor with the values now."""
        self._load(tensor)
        return tensor.inner.clone()

    # -- operations -------------------------------------------------------------------

    def run(self, func, args, kwargs):
        if len(self.dead) >= SOME:
            self.bury()
        if func is torch.ops.aten.copy_.default:
            return self._copy(*args, **kwargs)
        flat = tree_flatten((args, kwargs))[0]
        mine = [t for t in flat if isinstance(t, DeviceTensor)]
        foreign = [t for t in flat if isinstance(t, torch.Tensor) and t.dim() > 0 and
                   not isinstance(t, DeviceTensor)]
        if mine and foreign and "foreach_copy" not in func._schema.name:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device")
        kwargs.pop("device", None)
        kwargs.pop("pin_memory", None)
        index = mine[0].memory.index if mine else 0
        if not (_is_view(func) or _is_fresh(func) or func in OVERWRITE):
            self._load(*mine)
        bare = tree_map(lambda t: t.inner if isinstance(t, DeviceTensor) else t, (args, kwargs))
        result = func(*bare[0], **bare[1])
        for tensor in self._written(func, args, kwargs):
            self._store(tensor)
        return tree_map(lambda t: self._wrap(func, t, mine, index), result)

    @staticmethod
    def _written(func, args, kwargs):
        if func._schema.name == "aten::native_batch_norm":      # says nothing of its statistics
            return [t for t in args[3:5] if t is not None]
        given = dict(zip((a.name for a in func._schema.arguments), args))
        given.update(kwargs)
        values = [given.get(a.name) for a in func._schema.arguments
                  if a.alias_info is not None and a.alias_info.is_write]
        return [t for t in tree_flatten(values)[0] if isinstance(t, DeviceTensor)]

    def _wrap(self, func, result, mine, index):
        if not isinstance(result, torch.Tensor):
            return result
        if result.layout is not torch.strided:
            return next((t for t in mine if t.inner is result), None) or \
                DeviceTensor(result, Memory(index, 0))
        where = result.untyped_storage().data_ptr()
        for tensor in mine:
            if tensor.inner is result:
                return tensor
            if where and tensor.layout is torch.strided and \
                    tensor.inner.untyped_storage().data_ptr() == where:
                return DeviceTensor(result, tensor.memory)
        made = DeviceTensor(result, Memory(index, result.untyped_storage().nbytes()))
        if not _is_fresh(func):
            self._store(made)
        return made

    def _copy(self, to, source, non_blocking=False):
        host = source if isinstance(to, DeviceTensor) else to
        late = non_blocking and not isinstance(host, DeviceTensor) and \
            host.is_contiguous() and to.dtype == source.dtype and \
            host.untyped_storage().data_ptr() in self.pinned
        if not isinstance(to, DeviceTensor):
            return self._copy_out(to, source, late and source.inner.is_contiguous())
        if isinstance(source, DeviceTensor):
            self._load(source)
            to.inner.copy_(source.inner)
            self._store(to)
        elif late and to.inner.is_contiguous():
            self._store(to, source)
        else:
            if to.inner.is_contiguous():
                to.inner.copy_(source)
            else:
                self._load(to)
                to.inner.copy_(source)
            self._store(to)
        return to

    def _copy_out(self, to, source, late):
        if not late:
            self._load(source)
            return to.copy_(source.inner)
        stream = self.current(source.memory.index)
        stream.kept += [to, source.memory]
        if to.numel():
            first, end = _extent(source.inner)
            self.streams.read(stream.cuda_stream, to.data_ptr(), source.memory.address + first,
                              end - first)
        return to


def _index(device):
    if isinstance(device, int):
        return device
    return (torch.device(device).index or 0) if device is not None else 0


def _is_cuda(device):
    return device is not None and torch.device(device).type == "cuda"


class _Functions(TorchFunctionMode):
    """Sends what speaks of devices to the device that is installed."""

    def __init__(self, device):
        super().__init__()
        self.target = device

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in _device_constructors():
            return self._make(func, args, kwargs)
        if func in (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu):
            return self._move(func, args, kwargs)
        if func is torch.Tensor.new_tensor and isinstance(args[0], DeviceTensor):
            kwargs.setdefault("dtype", args[0].dtype)
            return self._make(torch.tensor, args[1:], {"device": args[0].device, **kwargs})
        return func(*args, **kwargs)

    def _make(self, func, args, kwargs):
        device = kwargs.pop("device", None)
        pinned = kwargs.pop("pin_memory", False)
        if not (_is_cuda(device) or device is None and self.target.everything):
            kwargs.update({} if device is None else {"device": device})
            result = func(*args, **kwargs)
            if pinned:
                self.target.pinned.add(result.untyped_storage().data_ptr())
            return result
        wants = kwargs.pop("requires_grad", False)
        with torch.no_grad():
            inner = func(*args, device="cpu", **kwargs)
            if isinstance(inner, DeviceTensor):
                return inner
        return self.target.put(inner, _index(device)).requires_grad_(wants)

    def _move(self, func, args, kwargs):
        tensor, rest = args[0], list(args[1:])
        goal = "cuda" if func is torch.Tensor.cuda else "cpu" if func is torch.Tensor.cpu else \
            kwargs.pop("device", None)
        if goal is None and rest and isinstance(rest[0], (str, torch.device, int)):
            goal, rest = rest[0], rest[1:]
            kwargs.update({k: v for k, v in zip(("dtype", "non_blocking", "copy"), rest)
                           if v is not None})
            rest = []
        late = kwargs.pop("non_blocking", False)
        if goal is not None and _is_cuda(goal) != isinstance(tensor, DeviceTensor) and \
                torch.device(goal).type != "meta":
            if isinstance(tensor, DeviceTensor):
                tensor = self.target.fetch(tensor)
            else:
                made = self.target.put(torch.empty_like(tensor, device="cpu"), _index(goal))
                tensor = made.copy_(tensor.detach(), non_blocking=late)
        if func is not torch.Tensor.to or not (rest or kwargs):
            return tensor
        return tensor.to(*rest, **kwargs)
