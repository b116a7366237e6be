"""Errors as OpenAI's API tells them."""

from __future__ import annotations

import json

_TYPES = {
    400: "BadRequestError", 404: "NotFoundError", 405: "MethodNotAllowed", 413: "RequestEntityTooLarge", 429: "RateLimitError",
    500: "InternalServerError", 503: "ServiceUnavailableError",
}  # fmt: skip
_LONGEST = 1000  # characters of a message: what a client sent may be in it, and is as long as the client likes


class ApiError(Exception):
    """What is told to a client in place of an answer.

    Args:
        message: what is wrong.
        status: of the HTTP response.
        param: the key of the body that it is about.
        code: a word for programs, where OpenAI has one.
    """

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        message = message if len(message) <= _LONGEST else f"{message[: _LONGEST - 1]}…"
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code

    def body(self) -> str:
        """The JSON that says so."""
        kind = _TYPES.get(self.status, "BadRequestError")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code or self.status}
        return json.dumps({"error": error}, ensure_ascii=False)
