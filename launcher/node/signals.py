"""The signal module without its enums, which take 3 ms of a start of 20 ms."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import *  # noqa: F403
else:
    from _signal import *  # noqa: F403

HOLD = 60  # SIGRTMAX-4, unused by convention: torchrun does nothing more until guardian and supervisor are gone
