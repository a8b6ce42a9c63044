"""How many records a stream reads and writes a second, from Spark's reports on its batches.

Spark's own figure is that of one batch alone: ten records that a batch found at once are "96/s" on a stream that gets one a
second. People compare the rate with what they send, so it is what was read over the time that passed.
"""

from collections import deque

# The rate is over the reports of so many seconds, and over two reports at least.
WINDOW_SECONDS = 30.0


class RecordRate:
    """Records per second between reports."""

    def __init__(self) -> None:
        # When a report was made (Unix time), and how many records were read and written by then.
        self._reports: deque[tuple[float, int, int]] = deque()

    def add(self, began: float, ended: float, rows_in: int, rows_out: int) -> tuple[float, float]:
        """Add a batch, or a look that found nothing to read; the rates in and out as of its end. Unix times."""
        if not self._reports or ended <= self._reports[-1][0]:
            # The first, or the clock was set back.
            self._reports.clear()
            self._reports.append((began, 0, 0))
        _, read, written = self._reports[-1]
        self._reports.append((ended, read + rows_in, written + rows_out))
        while len(self._reports) > 2 and self._reports[1][0] <= ended - WINDOW_SECONDS:
            self._reports.popleft()
        first_at, first_read, first_written = self._reports[0]
        seconds = max(0.001, ended - first_at)
        return (read + rows_in - first_read) / seconds, (written + rows_out - first_written) / seconds
