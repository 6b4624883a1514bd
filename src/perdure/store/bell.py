"""Wakes a thread that waits: by another thread, or by a file descriptor that it watches too."""

import os
import select


class Bell:
    """One thread waits, all others ring."""

    def __init__(self) -> None:
        self._hear, self._ring = os.pipe()
        os.set_blocking(self._hear, False)
        os.set_blocking(self._ring, False)
        self._poll = select.poll()
        self._poll.register(self._hear, select.POLLIN)
        self._rung = select.poll()
        self._rung.register(self._hear, select.POLLIN)

    def watch(self, descriptor: int) -> None:
        """Let a descriptor that has something to read end a wait, too."""
        self._poll.register(descriptor, select.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""
        self._poll.unregister(descriptor)

    def ring(self) -> None:
        """End the wait of the other thread, now or as soon as it begins."""
        try:
            os.write(self._ring, b"!")
        except BlockingIOError:
            return  # it rings already

    def wait(self, seconds: float | None) -> None:
        """Wait until it rings, the watched descriptor has something, or the time is over."""
        self._poll.poll(None if seconds is None else seconds * 1000)
        self._quieten()

    def rest(self, seconds: float | None) -> None:
        """Wait until it rings or the time is over, whatever the watched descriptor has."""
        self._rung.poll(None if seconds is None else seconds * 1000)
        self._quieten()

    def _quieten(self) -> None:
        try:
            os.read(self._hear, 4096)
        except BlockingIOError:
            return  # not rung

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._hear)
        os.close(self._ring)
