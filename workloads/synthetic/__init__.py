"""Synthetic traffic: arrival processes, length laws, shared prefixes, sessions."""

from workloads.synthetic.arrivals import PROCESSES, ArrivalProcess, parse_arrivals
from workloads.synthetic.generate import SyntheticSpec, synthesize
from workloads.synthetic.lengths import LAWS

__all__ = ["LAWS", "PROCESSES", "ArrivalProcess", "SyntheticSpec", "parse_arrivals", "synthesize"]
