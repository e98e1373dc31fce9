"""Settings of a launch as plain attribute objects.

Imported by: horovod.runner; programs written for Horovod 0.28.
"""
from typing import Any, Optional

from horovod.runner.common.util.timeout import Timeout


class BaseSettings:
    """What every launch is told."""

    def __init__(self, num_proc: Optional[int] = None, verbose: int = 0,
                 ssh_port: Optional[int] = None, ssh_identity_file: Optional[str] = None,
                 extra_mpi_args: Optional[str] = None, tcp_flag: Optional[bool] = None,
                 binding_args: Optional[str] = None, key: Optional[bytes] = None,
                 start_timeout: Optional[Timeout] = None,
                 output_filename: Optional[str] = None, run_func_mode: Optional[bool] = None,
                 nics: Any = None, elastic: bool = False,
                 prefix_output_with_timestamp: bool = False) -> None:
        self.num_proc = num_proc
        self.verbose = verbose
        self.ssh_port = ssh_port
        self.ssh_identity_file = ssh_identity_file
        self.extra_mpi_args = extra_mpi_args
        self.tcp_flag = tcp_flag
        self.binding_args = binding_args
        self.key = key
        self.start_timeout = start_timeout
        self.output_filename = output_filename
        self.run_func_mode = run_func_mode
        self.nics = nics
        self.elastic = elastic
        self.prefix_output_with_timestamp = prefix_output_with_timestamp


class Settings(BaseSettings):
    """A static job: its hosts are known."""

    def __init__(self, hosts: Optional[str] = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hosts = hosts
