"""Hardware: GPUs and the links between them, from data sheets."""

from sim.hardware.gpu import GB, GIB, GPUSpec, list_gpus, load_gpu
from sim.hardware.links import LINKS, Link, list_links, load_link

__all__ = ["GB", "GIB", "LINKS", "GPUSpec", "Link", "list_gpus", "list_links", "load_gpu", "load_link"]
