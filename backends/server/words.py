"""From text to token ids and back: by the model's tokenizer, or by a rule where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack
from typing import TYPE_CHECKING, Protocol

from workloads.errors import InputError

if TYPE_CHECKING:
    from backends.weights.tokenizer import Tokenizer

Message = dict[str, str]
"""`role` and `content`."""

BYTES_PER_TOKEN = 4
# Words of three letters, one after another.
_FILLERS = tuple(
    line[at : at + 3]
    for line in (
        "theandforarebutnotyouallcanhadherwasoneouroutdaygethashimhishowmannewnowoldseetwowaywhoboydiditslet",
        "putsayshetoouseairaskbigboxcarcupdryeatendfarfewflygothotjobkeylawlaylielotlowmapmaymenmixnetnoroff",
        "oilownpayperredrunseasetsitsixskysonsuntentoptrywarwetwhywinyes",
    )
    for at in range(0, len(line), 3)
)


class Words(Protocol):
    """What the server asks of a tokenizer.

    Attributes:
        size: token ids are below it.
        rule: how text is counted, for people.
        fillers: ids of tokens of which answers without a model are made; each has a text of its own.
    """

    size: int
    rule: str
    fillers: Sequence[int]

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text; `special`: with what the model wants before it."""

    def chat(self, messages: list[Message]) -> list[int]:
        """Token ids of a conversation that is to be continued."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""

    def parts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token by itself."""


class CountedWords:
    """Four bytes of UTF-8 are a token, whose id they are: English has about as many in the tokenizers of present models.

    Filler words have three letters and a blank, so that an answer that comes back in a later prompt is the same tokens, and
    is found in a prefix cache, as it would be in a real one.
    """

    size = 1 << 8 * BYTES_PER_TOKEN
    rule = f"{BYTES_PER_TOKEN} bytes of text are a token"

    def __init__(self) -> None:
        self.fillers: Sequence[int] = [self.encode(f" {word}")[0] for word in _FILLERS]

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Nothing comes before a text."""
        data = text.encode("utf-8", "surrogatepass")
        data += b"\0" * (-len(data) % BYTES_PER_TOKEN)
        return list(unpack(f"<{len(data) // BYTES_PER_TOKEN}I", data))

    def chat(self, messages: list[Message]) -> list[int]:
        """Every message between a mark with its role and one for its end, each of whole tokens."""
        ids: list[int] = []
        for message in messages:
            ids += self.encode(f"<|{message['role']}|>")
            ids += self.encode(message["content"])
            ids += self.encode("</s>")
        return ids + self.encode("<|assistant|>")

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes, read as UTF-8."""
        data = b"".join(token.to_bytes(BYTES_PER_TOKEN, "little").rstrip(b"\0") for token in ids)
        return data.decode("utf-8", "replace")

    def parts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token by itself."""
        return [self.decode([token]) for token in ids]


class ModelWords:
    """The tokenizer of a model's folder.

    Args:
        tokenizer: the model's.
        size: token ids are below it.
    """

    rule = "by the model's tokenizer"

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self.tokenizer = tokenizer
        self.size = size
        self._fillers: list[int] = []
        self._alone: dict[int, str] = {}  # texts of single tokens, which a stream asks for at every one

    @property
    def fillers(self) -> Sequence[int]:
        """Words of one token that stay the same tokens when a text of them is read again."""
        if not self._fillers:
            single = [self.tokenizer.plain(f" {word}") for word in _FILLERS]
            self._fillers = [ids[0] for ids in single if len(ids) == 1] or [ids[-1] for ids in single]
        return self._fillers

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text."""
        return self.tokenizer.encode(text) if special else self.tokenizer.plain(text)

    def chat(self, messages: list[Message]) -> list[int]:
        """By the model's chat template.

        Raises:
            InputError: it has none, or refuses the messages.
        """
        return self.tokenizer.chat(messages)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without those that are not text."""
        if len(ids) != 1:
            return self.tokenizer.decode(list(ids))
        (token,) = ids
        if token not in self._alone:
            self._alone[token] = self.tokenizer.decode([token])
        return self._alone[token]

    def parts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token by itself."""
        return [self.decode([token]) for token in ids]


class NoWords:
    """For a model without a tokenizer: token ids come and go, and text is refused.

    Args:
        size: token ids are below it.
    """

    rule = "none: prompts are token ids"
    fillers: Sequence[int] = ()

    def __init__(self, size: int) -> None:
        self.size = size

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Refused.

        Raises:
            InputError: always.
        """
        raise InputError("this model has no tokenizer: give prompts as token ids")

    def chat(self, messages: list[Message]) -> list[int]:
        """Refused.

        Raises:
            InputError: always.
        """
        return self.encode("")

    def decode(self, ids: Sequence[int]) -> str:
        """Nothing."""
        return ""

    def parts(self, ids: Sequence[int]) -> list[str]:
        """Nothing."""
        return ["" for _ in ids]
