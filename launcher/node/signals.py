"""The signal module without its enums, which cost 3 ms of a start that takes 20."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import *  # noqa: F403
else:
    from _signal import *  # noqa: F403

HOLD = 60  # SIGRTMAX-4, nobody's by convention: torchrun does nothing more until guardian and supervisor are gone
