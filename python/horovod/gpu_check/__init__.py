"""A self-test for machines with GPUs: ``python -m horovod.gpu_check``.  See docs/gpu.md."""
