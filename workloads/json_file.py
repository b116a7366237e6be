"""A small file that holds one JSON object, as tools leave them beside what they describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workloads.errors import InputError, Place


def read_object(path: Path) -> dict[str, Any]:
    """The object of a file; a byte order mark at its beginning does no harm.

    Raises:
        InputError: unreadable, not JSON, nested too deeply, a number of too many digits, or something other than an object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", place=Place(file=str(path))) from None
    except UnicodeDecodeError:
        raise InputError("is not a text file", place=Place(file=str(path))) from None
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", place=Place(file=str(path), line=error.lineno)) from None
    except RecursionError:
        raise InputError("is not JSON that can be read: it is nested too deeply", place=Place(file=str(path))) from None
    except ValueError:  # more digits than Python turns into a number
        raise InputError("has a number of too many digits", place=Place(file=str(path))) from None
    if not isinstance(values, dict):
        raise InputError("expected a JSON object", place=Place(file=str(path)))
    return values
