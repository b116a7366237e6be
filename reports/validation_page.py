"""The page of a validation: errors by group, what was left out, the worst cells, the figure. Self-contained."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from reports.html.template import environment
from reports.validation import GROUPS, by, errors, inside, kept, warned, worst
from reports.wording import clean, number

_PAGE = """\
{% extends "base.html" %}
{% macro errs(title, rows) %}
<h3>{{ title }}</h3>
<div class="card scroll"><table><thead><tr><th>{{ title }}</th>
{% for head in heads %}<th class="n">{{ head }}</th>{% endfor %}</tr></thead><tbody>
{% for name, values in rows %}
<tr><td>{{ name }}</td>{% for value in values %}<td class="n">{{ value }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}
{% block content %}
<div class="wrap"><header><div class="over">Twinserve validation</div><h1>{{ name }}</h1>
<ul class="facts">{% for label, value in facts %}<li><span>{{ label }}</span>{{ value }}</li>{% endfor %}</ul></header></div>
<nav aria-label="Sections"><div class="wrap"><a href="#errors">Errors</a><a href="#figure">Figure</a>
<a href="#left">Left out</a><a href="#worst">Worst</a><button type="button" class="theme">Theme: auto</button></div></nav>
<main class="wrap">
{% if notes %}<div class="warnings"><b>Read this first</b><ul>
{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul></div>{% endif %}
<section id="errors"><h2>Errors</h2>
<p class="lead">Errors are ln(predicted / measured), as per cent; the bias is the median with its sign.</p>
{% for title, rows in tables %}{{ errs(title, rows) }}{% endfor %}
</section>
<section id="figure"><h2>Predicted against measured</h2>
<div class="card"><img alt="Predicted against measured values, log-log"
 src="{{ figure }}" style="max-width:100%;background:#fff"></div>
</section>
<section id="left"><h2>Left out</h2>
<p class="lead">Decided from the tables' columns alone, before anything was simulated.</p>
<div class="card scroll"><table><thead><tr><th>rule</th><th class="n">cells</th><th>reason</th></tr></thead><tbody>
{% for rule, count, reason in left %}
<tr><td>{{ rule }}</td><td class="n">{{ count }}</td><td>{{ reason }}</td></tr>
{% endfor %}
</tbody></table></div></section>
<section id="worst"><h2>Worst cells</h2>
{% for cell in worst %}
<div class="card"><p><strong>{{ cell.what }}</strong></p><p>{{ cell.figures }}</p>
{% for warning in cell.warnings %}<p>{{ warning }}</p>{% endfor %}
<details><summary>configuration</summary><ul>
{% for key, value in cell.config %}<li><code>{{ key }}</code>: {{ value }}</li>{% endfor %}
</ul></details></div>
{% endfor %}
</section>
<footer>Made by Twinserve.</footer>
</main>
{% endblock %}
"""
HEADS = ("cells", "median", "mean", "p95", "bias", "within 1.25x", "off by > 3x", "rank corr.")


def render_validation(
    records: Sequence[dict], left: Sequence[tuple[str, int, str]], figure: str, *, name: str, facts: Sequence[tuple[str, str]],
    notes: Sequence[str] = (),
) -> str:  # fmt: skip
    """One self-contained HTML page.

    Args:
        left: (rule, cells, reason) of what was left out. figure: SVG text. facts: (label, value) below the title.
    """
    counted = kept(records)
    rows = [("counted", _values(errors(counted))), ("with what rules leave out", _values(errors(records)))]
    tables: list[tuple[str, list]] = [("all", [row for row in rows if row[1]])]
    for key in GROUPS:
        tables.append((key, [(clean(str(group), 80), _values(e)) for group, e in by(counted, key).items()]))
    held = {role: errors([r for r in records if r["role"] == role]) for role in ("fitted", "held out")}
    if any(held.values()):
        tables.insert(1, ("host time fitted", [(role, _values(e)) for role, e in held.items() if e]))
    found = warned(counted)
    shown = [
        *facts,
        ("warned", f"{found.share:.1%} of the cells"),
        ("of those off by > 3x", f"{found.caught} of {found.far}"),
    ]
    share = inside(counted)
    if share is not None:
        shown.append(("inside the 80 % interval", f"{share:.0%} of the cells"))
    image = "data:image/svg+xml;base64," + base64.b64encode(figure.encode()).decode()
    return environment().from_string(_PAGE).render(
        name=clean(name, 200), facts=shown, notes=[clean(n) for n in notes], heads=HEADS, tables=tables, figure=image,
        figures={}, left=[(clean(rule), f"{count:,}", clean(reason)) for rule, count, reason in left],
        worst=[_worst(r) for r in worst(counted)],
    )  # fmt: skip


def _values(found: Any) -> list[str]:
    return row_of(found) if found else []


def row_of(e: Any) -> list[str]:
    """Errors as the columns of `HEADS`."""
    rank = "n/a" if e.rank is None else f"{e.rank:.3f}"
    return [
        f"{e.cells:,}", f"{e.median:.1%}", f"{e.mean:.1%}", f"{e.p95:.0%}", f"{e.bias:+.1%}", f"{e.close:.0%}",
        f"{e.far:,}", rank,
    ]  # fmt: skip


def describe(r: dict) -> str:
    """A cell in one line."""
    ways = (
        f"TP{r['tensor']}"
        + (f" PP{r['pipeline']}" if r["pipeline"] > 1 else "")
        + (f" EP{r['expert']}" if r["expert"] > 1 else "")
    )
    return clean(
        f"{r['source']}:{r['line']} {r['engine']} {r['engine_version']} {r['model']} {r['weights']} on {r['gpus']} {r['gpu']} "
        f"{ways}, {r['isl']}/{r['osl']}, {r['load']}: {r['metric']}", 300,
    )  # fmt: skip


def _worst(r: dict) -> dict:
    figures = f"measured {number(r['measured'])}, predicted {number(r['predicted'])} ({r['log_ratio']:+.0%} in logs)"
    return {
        "what": describe(r), "figures": figures, "warnings": [clean(w) for w in r["warnings"]],
        "config": [(key, clean(str(value), 100)) for key, value in r["config"].items()],
    }  # fmt: skip
