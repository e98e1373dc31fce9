"""Texts of elastic jobs that tools look for.

Imported by: programs written for Horovod 0.28 only.
"""
RESET_LIMIT_EXCEEDED_MESSAGE = ("Horovod was shutdown because number of resets during elastic "
                                "job exceeded limit: {}")
