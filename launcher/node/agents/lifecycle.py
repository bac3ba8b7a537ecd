"""What an agent may do now, decided from what has happened to it: without sockets, processes or a clock."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 5.0  # between two dials


class Lifecycle:
    """An agent that dials, is connected, or ends.

    Before GO nothing was started, so whatever goes wrong ends it. After GO it ends when the controller says so, or
    when it could not connect for `redial_s`. `exit_code` is None until it ends, and then never changes; the agent
    exits once its processes have. Times are seconds of one clock that includes suspend.
    """

    def __init__(self, connect_timeout_s: float, redial_s: float, now: float) -> None:
        """connect_timeout_s: for the first connection; redial_s: for each later one, 0 to never dial again."""
        self.has_started = False  # GO has come
        self.exit_code: Optional[int] = None
        self.dial_at: Optional[float] = now  # None while it is connected, or ends
        self._redial_s = redial_s
        self._give_up_at: Optional[float] = now + connect_timeout_s
        self._pauses = 0  # since it was last connected
        self._attempt = 0  # the highest that was seen

    def begin_dial(self, now: float) -> None:
        """Note that all addresses are being tried. The next dial follows even if some of them don't respond."""
        self.plan_dial(now)

    def plan_dial(self, now: float) -> None:
        """Plan the next dial, after a pause that grows."""
        if self.exit_code is None:
            self._pauses += 1
            self.dial_at = now + min(self._pauses * MIN_PAUSE_S, MAX_PAUSE_S)

    def stop_dialing(self) -> None:
        """Note that the controller was found, which may still refuse this agent."""
        self.dial_at = None

    def connect(self) -> None:
        """Note that the controller has accepted this agent."""
        self._pauses = 0
        self._give_up_at = None

    @property
    def may_redial(self) -> bool:
        """Tell whether a lost connection doesn't end it."""
        return self._redial_s > 0

    def disconnect(self, now: float) -> None:
        """Note that the connection is lost."""
        if not self.has_started or not self.may_redial:
            self.end(1)
        elif self.exit_code is None:
            self._give_up_at = now + self._redial_s
            self.plan_dial(now)

    def start(self) -> None:
        """Note GO: from now on processes may be started."""
        self.has_started = True

    def end(self, exit_code: int) -> None:
        """End, with this exit code unless it ends already."""
        if self.exit_code is None:
            self.exit_code = exit_code
            self.dial_at = self._give_up_at = None

    def check_time(self, now: float) -> None:
        """End if no connection was made in time."""
        if self._give_up_at is not None and now >= self._give_up_at:
            self.end(1)

    def wake_at(self) -> Optional[float]:
        """Return when `check_time` or a dial is due next; None: never."""
        return min((at for at in (self.dial_at, self._give_up_at) if at is not None), default=None)

    def refuse(self, attempt: int) -> Optional[str]:
        """Return why no process may be started for an attempt, or None if one may; a lower attempt is over then."""
        if not self.has_started:
            return "the controller has not said GO"
        if self.exit_code is not None:
            return "it is ending"
        if attempt < self._attempt:
            return "attempt %d is over, attempt %d has begun" % (attempt, self._attempt)
        self._attempt = attempt
        return None
