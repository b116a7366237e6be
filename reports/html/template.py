"""Renders the templates of this folder, with everything from outside escaped."""

from __future__ import annotations

from functools import cache
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from reports import strict_json
from reports.wording import clean, number, seconds, setting, share, size

# a rising line on a tile, as the icon of the page
FAVICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E%3Crect width='32' height='32' "
    "rx='7' fill='%230072B2'/%3E%3Cpath d='M6 23l7-7 4 4 9-11' fill='none' stroke='white' stroke-width='3.2' "
    "stroke-linecap='round' stroke-linejoin='round'/%3E%3C/svg%3E"
)


@cache
def environment() -> Environment:
    """The one environment: autoescape on, an undefined name is an error."""
    env = Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "number": number, "share": share, "seconds": seconds, "size": size, "setting": setting, "clean": clean,
        "script_json": script_json,
    }  # fmt: skip
    env.globals |= {
        "favicon": FAVICON,
        "style": Markup(_style()),
        "script": Markup(_read("page.js")),
    }
    return env


def render(name: str, /, **context: object) -> str:
    """The template `name` of this folder."""
    return environment().get_template(name).render(**context)


def script_json(value: object) -> Markup:
    """JSON that may stand inside a script element: nothing in it can close the element or open a comment."""
    text = strict_json.dumps(value, indent=None)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _style() -> str:
    """The style sheet, with the dark colours where the system or the reader asks for them; print stays light."""
    dark = _read("dark.css")
    rules = (
        f'@media not print {{ @media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }} '
        f':root[data-theme="dark"] {{ {dark} }} }}'
    )
    return _read("page.css").replace("/* DARK */", rules)


def _read(name: str) -> str:
    return (resources.files("reports.html") / name).read_text("utf-8")
