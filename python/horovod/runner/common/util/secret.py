"""Job keys.

Imported by: horovod.ray; programs written for Horovod 0.28.
"""
HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH_BYTES = 32


def make_secret_key() -> bytes:
    """32 random bytes of the kernel."""
    from horovod import _core
    return _core.generate_key()
