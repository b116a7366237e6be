"""What `workload.yaml` may say: one frozen pydantic model a section.

Units are converted on reading: durations are seconds, `*_ms` milliseconds, `*_gib` GiB. A field that is None was not
written, and the preset (or a derived value) decides.
"""

from experiments.schema.engine import EngineSection, KVSection, ParallelSection, SchedulerSection, SpeculationSection
from experiments.schema.traffic import TraceSection, TrafficSection
from experiments.schema.workload import BackendSection, LoadSection, SLOSection, Workload

__all__ = [
    "BackendSection",
    "EngineSection",
    "KVSection",
    "LoadSection",
    "ParallelSection",
    "SLOSection",
    "SchedulerSection",
    "SpeculationSection",
    "TraceSection",
    "TrafficSection",
    "Workload",
]
