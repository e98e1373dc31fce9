"""A loader, and a mixin that runs it in a thread of its own."""
import logging
import queue
import threading
from typing import Any, Iterator

log = logging.getLogger(__name__)


class BaseDataLoader:
    """Iterates over the batches of ``_iterate``, each passed through ``_process_batch``."""

    def __len__(self) -> int:
        """The number of batches of one pass."""
        raise NotImplementedError()

    def _iterate(self) -> Iterator[Any]:
        raise NotImplementedError()

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        return batch


class AsyncDataLoaderMixin:
    """Loads batches in a thread while others are trained on.

        class MyLoader(AsyncDataLoaderMixin, MyBaseLoader): ...

    One thread serves all passes: it puts batches in a queue of ``async_loader_queue_size``
    (0: no thread), and None after each pass.  Call ``close_async_loader`` at the end.
    """

    def __init__(self, async_loader_queue_size: int = 64, debug_data_loader: bool = False,
                 *args: Any, **kwargs: Any) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        super().__init__(*args, **kwargs)
        self.started = False
        self.finished_event = threading.Event()
        if async_loader_queue_size > 0:
            self.queue: queue.Queue = queue.Queue(async_loader_queue_size)
            self.thread = threading.Thread(target=self._async_worker, daemon=True)

    def _debug(self, text: str, *args: Any) -> None:
        if self.debug_data_loader:
            log.warning(text, *args)

    def _put(self, item: Any) -> None:
        """Puts an item unless the loader is being closed."""
        while not self.finished_event.is_set():
            try:
                self.queue.put(item, timeout=0.1)
                return
            except queue.Full:
                pass

    def _async_worker(self) -> None:
        try:
            while not self.finished_event.is_set():
                for batch in self._iterate():                       # type: ignore
                    if self.finished_event.is_set():
                        break
                    self._put(batch)
                self._put(None)
        except Exception as e:
            self._put(e)
            self._put(None)
        finally:
            self._debug("the loader thread ends")

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            for batch in self._iterate():                           # type: ignore
                yield self._process_batch(batch)                    # type: ignore
            return
        if not self.started:
            self.started = True
            self.thread.start()
        while True:
            batch = self.queue.get()
            if batch is None:
                return
            if isinstance(batch, Exception):
                raise batch
            yield self._process_batch(batch)                        # type: ignore

    def close_async_loader(self) -> None:
        """Ends the thread; what it has loaded ahead is dropped."""
        if not self.started or self.async_loader_queue_size <= 0:
            return
        self.finished_event.set()
        for _ in range(max(2 * self.async_loader_queue_size, 200)):
            try:
                self.queue.get_nowait()
            except queue.Empty:
                break
        else:
            log.error("the loader's queue does not get empty")
        self.thread.join()
