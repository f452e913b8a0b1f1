"""Work in several processes at once: workers end silently with a signal, and never outlive their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.context import BaseContext
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM)


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_method() -> BaseContext:
    """How workers are started."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


@contextmanager
def worker_pool(workers: int, start: Callable[..., None], *arguments: Any) -> Iterator[ProcessPoolExecutor]:
    """A pool whose workers are ended with it if anything goes wrong; each calls `start` first.

    Submit in `undisturbed()`.
    """
    strangers = set(multiprocessing.active_children())
    initial = (start, *arguments)
    with ProcessPoolExecutor(workers, mp_context=start_method(), initializer=_started, initargs=initial) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - strangers:
                worker.terminate()
            raise


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let signals wait: between a fork and its note in our books, an interrupt would leave a worker behind.

    All workers start with the first task. A progress bar starts a thread, so it has to come later: forks and threads
    do not mix.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _started(start: Callable[..., None], *arguments: Any) -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    start(*arguments)


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
