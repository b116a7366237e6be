"""The documentation site: what is generated from the code, and how the whole is put together.

    python -m experiments.handbook OUT     the site's sources: docs/ with the reference and the claims' pages added
    python -m experiments.handbook.figures renew docs/figures

`make docs` builds the site from that.
"""
