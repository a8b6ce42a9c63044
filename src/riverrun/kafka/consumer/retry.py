"""When a failed handler is retried."""

import random
from dataclasses import dataclass

from riverrun.errors import UsageError


@dataclass(frozen=True)
class Retry:
    """Try again up to `times` times, waiting longer each time.

    The first wait is `first_seconds`, each next one `factor` times as long, up to `longest_seconds`; each wait is shortened
    by a random part of up to `jitter`, so that many that failed together do not retry together. Only exceptions of the
    classes in `on` are retried.
    """

    times: int = 3
    first_seconds: float = 0.2
    factor: float = 2.0
    longest_seconds: float = 30.0
    jitter: float = 0.5
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("times", 0, float("inf")), ("first_seconds", 0, float("inf")), ("factor", 1, float("inf")),
            ("longest_seconds", 0, float("inf")), ("jitter", 0, 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if not least <= value <= most:
                limits = f"at least {least}" if most == float("inf") else f"{least} to {most}"
                raise UsageError(f"Retry cannot have {name}={value}", expected=limits, option=name)

    def wait_after(self, attempts: int, error: Exception, *, chance: float | None = None) -> float | None:
        """Seconds to wait after this many attempts, the last of which ended in `error`; None: give up.

        `chance` is the random part, from 0 to 1; random by default.
        """
        if attempts > self.times or not isinstance(error, self.on):
            return None
        try:
            wait = self.first_seconds * self.factor ** (attempts - 1)
        except OverflowError:
            wait = self.longest_seconds
        drawn = random.random() if chance is None else chance  # noqa: S311  -- no secret, only spread
        return min(wait, self.longest_seconds) * (1 - self.jitter * drawn)
