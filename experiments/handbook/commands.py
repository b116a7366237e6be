"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WIDTH = 92


def commands() -> dict[str, Any]:
    """Every command by its full name (`bench trace inspect`), in the order of the help; groups left out."""
    from typer.main import get_command

    from experiments.cli import app

    found: dict[str, Any] = {}

    def walk(command: Any, name: str) -> None:
        if inner := getattr(command, "commands", None):
            for each in inner.values():
                walk(each, f"{name} {each.name}")
        else:
            found[name] = command

    walk(get_command(app), "bench")
    return found


def help_of(name: str, command: Any) -> str:
    """What `--help` prints, at one width whatever the terminal is."""
    context = command.context_class(
        command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH, help_option_names=["-h", "--help"]
    )
    return "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())


def page() -> Iterator[str]:
    """The page as lines of Markdown."""
    yield "# Command line"
    yield ""
    yield (
        "`bench COMMAND --help` prints the same. Exit codes: 0 good, 1 a gate failed, 2 the input was wrong or results could "
        "not be written, 3 the target could not be reached or every request failed, 130 after Ctrl-C."
    )
    for name, command in commands().items():
        yield ""
        yield f"## {name}"
        yield ""
        yield "```text"
        yield help_of(name, command).replace("```", "'''")
        yield "```"
