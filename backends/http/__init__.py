"""Somebody's server, over HTTP: the load of a workload sent to it and what comes back, told by the clock of this side."""
