"""The signal module without its enums, which cost 3 ms of a start that takes 20."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import *  # noqa: F403
else:
    from _signal import *  # noqa: F403
