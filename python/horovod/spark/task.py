"""In a training process: the devices of its Spark task."""
import os
from typing import List


def get_available_devices() -> List[str]:
    """The addresses of the GPUs that Spark has given to the task of this process."""
    return [a for a in os.environ.get("HOROVOD_SPARK_GPUS", "").split(",") if a]


def chosen_gpu(local_rank: int) -> int:
    """The first GPU of the task; the local rank if Spark has given none, or if
    HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX is 1."""
    devices = get_available_devices()
    if devices and os.environ.get("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX", "0") != "1":
        return int(devices[0])
    return local_rank
