"""The commands of `bench`, put together."""

from experiments.cli.bench import app
from experiments.cli.calibrate import calibrate
from experiments.cli.compare import compare
from experiments.cli.doctor import doctor
from experiments.cli.experiment import experiment_app
from experiments.cli.explain import explain
from experiments.cli.gate import gate
from experiments.cli.init import init
from experiments.cli.lists import list_names
from experiments.cli.model import model_app
from experiments.cli.plan import plan
from experiments.cli.profile import profile
from experiments.cli.quality import quality
from experiments.cli.quantize import quantize
from experiments.cli.report import report
from experiments.cli.run import run
from experiments.cli.size import size
from experiments.cli.sweep import sweep
from experiments.cli.trace import trace_app
from experiments.cli.validate import validate

__all__ = ["app"]

# The order here is the order in the help.
for _name, _command in (
    ("run", run),
    ("sweep", sweep),
    ("plan", plan),
    ("compare", compare),
    ("gate", gate),
    ("report", report),
    ("validate", validate),
    ("calibrate", calibrate),
    ("profile", profile),
    ("quantize", quantize),
    ("quality", quality),
    ("explain", explain),
    ("size", size),
    ("list", list_names),
    ("init", init),
    ("doctor", doctor),
):
    app.command(_name)(_command)
app.add_typer(experiment_app, name="experiment")
app.add_typer(model_app, name="model")
app.add_typer(trace_app, name="trace")
