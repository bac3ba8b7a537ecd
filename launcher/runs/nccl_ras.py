"""Ask NCCL's RAS what it knows of a run that may hang, and show that; the run continues."""

from __future__ import annotations

import asyncio
from functools import partial

from launcher.diagnosis.nccl_ras import find_complaints, is_answer
from launcher.node import messages
from launcher.output.run_folder import RunRecord
from launcher.session.connection import Event
from launcher.session.session import Session

ANSWER_S = 13.0  # a node gives up after 12 s


class NcclRas:
    """Asks the first node whose ranks run: its answer is about all ranks."""

    def __init__(self, session: Session, record: RunRecord) -> None:
        self._session = session
        self._record = record
        self._number = 0

    async def show(self) -> None:
        """Print the errors and warnings of RAS, if NCCL is used and responds."""
        session = self._session
        living = [index for index, state in enumerate(session.states) if state.started and state.ended is None]
        if not living:
            return
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def take(event: Event) -> None:
            if event.index == living[0] and not answered.done():
                answered.set_result(event.fields["content"].decode("utf-8", "replace"))

        with session.subscribe(messages.RAS_STATUS, take):
            session.send(living[0], messages.RAS)
            try:
                text = await asyncio.wait_for(answered, ANSWER_S)
            except asyncio.TimeoutError:
                return
        if is_answer(text):
            self._show(text)

    def _show(self, text: str) -> None:
        complaints = find_complaints(text)
        found = "reports:" if complaints else "has found nothing unusual"
        for line in [f"launch: NCCL (RAS) {found}", *(f"  {line}" for line in complaints)]:
            self._session.say(line)
        self._number += 1
        name = self._record.name_text("nccl-ras", self._number)
        self._record.disk.put(partial(self._record.keep_text, name, text))
