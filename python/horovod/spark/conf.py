"""Settings of Spark for elastic jobs, as pairs (key, value).

They decide whether a failed task is started again, and where.  They are core settings: give
them to the session's builder.  Spark has renamed ``spark.blacklist.*`` to
``spark.excludeOnFailure.*``; the names here have kept the old word, the keys are the new ones.
"""
SPARK_CONF_MAX_INT = "2147483647"
SPARK_CONF_MAX_INT_MINUS_ONE = "2147483646"
_EXCLUDE = "spark.excludeOnFailure."

SPARK_CONF_ALWAYS_RESTART_FAILED_TASK = ("spark.task.maxFailures", SPARK_CONF_MAX_INT)

SPARK_CONF_BLACKLIST_DISABLED = (_EXCLUDE + "enabled", "false")
SPARK_CONF_BLACKLIST_ENABLED = (_EXCLUDE + "enabled", "true")

SPARK_CONF_REUSE_FAILED_EXECUTOR = (_EXCLUDE + "stage.maxFailedTasksPerExecutor",
                                    SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR = (_EXCLUDE + "stage.maxFailedTasksPerExecutor", "1")
SPARK_CONF_REUSE_FAILING_NODE = (_EXCLUDE + "stage.maxFailedExecutorsPerNode",
                                 SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILING_NODE = (_EXCLUDE + "stage.maxFailedExecutorsPerNode", "1")

SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP = (_EXCLUDE + "application.maxFailedTasksPerExecutor",
                                           SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP = (
    _EXCLUDE + "application.maxFailedTasksPerExecutor", "1")
SPARK_CONF_REUSE_FAILING_NODE_IN_APP = (_EXCLUDE + "application.maxFailedExecutorsPerNode",
                                        SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP = (
    _EXCLUDE + "application.maxFailedExecutorsPerNode", "1")

SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK = (_EXCLUDE + "task.maxTaskAttemptsPerExecutor",
                                                  SPARK_CONF_MAX_INT)
SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK = (_EXCLUDE + "task.maxTaskAttemptsPerExecutor",
                                                "2")
SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK = (_EXCLUDE + "task.maxTaskAttemptsPerExecutor",
                                                "1")
SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK = (_EXCLUDE + "task.maxTaskAttemptsPerNode",
                                              SPARK_CONF_MAX_INT)
SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK = (_EXCLUDE + "task.maxTaskAttemptsPerNode", "2")
SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK = (_EXCLUDE + "task.maxTaskAttemptsPerNode", "1")

# Settings outlive session.stop() in the same JVM: with these they are put back.
SPARK_CONF_DEFAULT_VALUES = {
    "spark.task.maxFailures": "4",
    _EXCLUDE + "enabled": "false",
    _EXCLUDE + "stage.maxFailedTasksPerExecutor": "2",
    _EXCLUDE + "stage.maxFailedExecutorsPerNode": "2",
    _EXCLUDE + "application.maxFailedTasksPerExecutor": "2",
    _EXCLUDE + "application.maxFailedExecutorsPerNode": "2",
    _EXCLUDE + "task.maxTaskAttemptsPerExecutor": "1",
    _EXCLUDE + "task.maxTaskAttemptsPerNode": "2",
}
