"""Callbacks for ``model.fit``."""
from horovod._keras.callbacks import (BestModelCheckpoint, BroadcastGlobalVariablesCallback,
                                      LearningRateScheduleCallback, LearningRateWarmupCallback,
                                      MetricAverageCallback)

__all__ = ["BestModelCheckpoint", "BroadcastGlobalVariablesCallback",
           "LearningRateScheduleCallback", "LearningRateWarmupCallback", "MetricAverageCallback"]
