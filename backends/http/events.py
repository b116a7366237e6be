"""Server-sent events, as far as streams of completions use them (WHATWG HTML, section 9.2).

Bytes are split before they are decoded, so that a character cut in two by the network is whole again, and a line of any length
is one line.
"""

from __future__ import annotations

DONE = b"[DONE]"
LONGEST = 16 << 20
"""Bytes of an event at most: what is longer is no answer, and would fill the memory."""
_BOM = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """A stream of one event without end."""


class EventStream:
    """Cuts bytes into the `data` of events; comments (keep-alives) and other fields are dropped.

    All three ends of a line are allowed, and a mark of the byte order at the beginning.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line whose end has not come
        self._data: list[bytes] = []
        self._rest_size = self._data_size = 0  # bytes, and one for each piece
        self._begun = self._returned = False  # whether anything came, and whether that ended with \r

    def feed(self, received: bytes) -> list[bytes]:
        """The data of every event that is complete now.

        Raises:
            EventTooLong: one is longer than `LONGEST`.
        """
        if not self._begun:
            received = self._beginning(received)
        if self._returned and received:
            self._returned = False
            received = received.removeprefix(b"\n")  # of a \r\n that was cut in two
        if b"\r" in received:
            self._returned = received.endswith(b"\r")
            received = received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in received:
            self._keep(received)
            return []
        if self._rest:
            received = b"".join([*self._rest, received])
        *lines, rest = received.split(b"\n")
        self._rest, self._rest_size = [], 0
        if rest:
            self._keep(rest)
        return self._events(lines)

    def end(self) -> list[bytes]:
        """What is left when the stream has ended without an empty line after its last event."""
        lines, self._rest = [b"".join(self._rest), b""], []
        return self._events(lines)

    def _beginning(self, received: bytes) -> bytes:
        whole = b"".join([*self._rest, received])
        if len(whole) < len(_BOM) and _BOM.startswith(whole):
            self._rest = [whole] if whole else []
            return b""
        self._begun, self._rest = True, []
        return whole.removeprefix(_BOM)

    def _keep(self, piece: bytes) -> None:
        """A piece of a line whose end has not come."""
        self._rest.append(piece)
        self._rest_size += len(piece) + 1
        if self._rest_size > LONGEST:
            raise _too_long()

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events, data = [], self._data
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
                self._data_size += len(line)
                if self._data_size > LONGEST:
                    raise _too_long()
            elif not line and data:
                events.append(b"\n".join(data) if len(data) > 1 else data[0])
                data.clear()
                self._data_size = 0
        return events


def _too_long() -> EventTooLong:
    return EventTooLong(f"an event of more than {LONGEST:,} bytes")
