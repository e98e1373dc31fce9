"""Smaller numbers on the wire: tensors are cast before and back after the reduction."""
from typing import Any, Tuple

import tensorflow as tf


class Compressor:
    """What ``compression=`` takes: an object with these two static methods."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        """(the tensor to send, what ``decompress`` needs to know)."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class _CastCompressor(Compressor):
    wire_dtype: Any

    @classmethod
    def compress(cls, tensor: Any) -> Tuple[Any, Any]:
        if tensor.dtype.is_floating:
            return tf.cast(tensor, cls.wire_dtype), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating point tensors as float16; sums are accumulated in float32."""
    wire_dtype = tf.float16


class BF16Compressor(_CastCompressor):
    """Sends floating point tensors as bfloat16, which has the range of float32."""
    wire_dtype = tf.bfloat16


class Compression:
    """The compressions at hand: ``none``, ``fp16``, ``bf16``."""
    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
