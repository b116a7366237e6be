"""Where a model is: a folder here, a repository of the Hugging Face hub, or only its architecture."""

from __future__ import annotations

from pathlib import Path

from backends.model.architecture import Architecture, architecture_of, read_architecture
from sim.models import find_model
from workloads.errors import InputError, Place

_WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
"""What is fetched of a repository; pickle never is."""


def find_source(name: str, load: str = "auto") -> Path | Architecture:
    """What `load_model` should be given for a model's name.

    Args:
        name: a folder, a `config.json`, a bundled name, or `organisation/name` on the hub.
        load: with `dummy` no weights are needed, so that a bundled name stands for its architecture.

    Raises:
        InputError: nothing of that name, here or (as far as it can be reached) on the hub.
    """
    path = Path(name).expanduser()
    if path.is_dir() or path.suffix == ".json":
        return path
    if name.startswith((".", "/", "~")):
        raise InputError(
            f"no model folder at {name}", place=Place(key="model"),
            hint="expected config.json and *.safetensors in it; `bench model` makes and imports some",
        )  # fmt: skip
    if load == "dummy":
        try:
            spec = find_model(name)
        except InputError:
            if "/" not in name:
                raise
        else:
            return architecture_of(spec)
    if "/" not in name:
        name = find_model(name).hf_id or name
    return fetch(name, weights=load == "auto")


def source_architecture(source: Path | Architecture) -> Architecture:
    """The architecture behind what `find_source` found."""
    return source if isinstance(source, Architecture) else read_architecture(source)


def fetch(name: str, weights: bool = True) -> Path:
    """The folder of a hub repository, fetched if it is not in the cache.

    Raises:
        InputError: it is not there, is not open to us, or the hub cannot be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    wanted = [pattern for pattern in _WANTED if weights or "safetensors" not in pattern]
    place = Place(key="model")
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except GatedRepoError:
        hint = "accept its terms on its page and log in with `hf auth login`"
        raise InputError(f"{name} is not open to everybody", place=place, hint=hint) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise InputError(f"the hub has no model {name}", place=place, hint="check its name, or give a folder") from None
    except Exception as error:  # each layer below has its own for a network that is not there
        why = str(error).strip().partition("\n")[0][:120] or type(error).__name__
        raise InputError(
            f"{name} is not here, and the hub cannot be reached: {why}", place=place,
            hint="give a local folder with config.json and *.safetensors, or `--load dummy` for random weights",
        ) from None  # fmt: skip
