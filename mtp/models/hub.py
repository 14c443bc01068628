"""Fetching a model of the Hugging Face hub into the hub's own cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mtp.errors import FetchError
from mtp.models import catalog
from mtp.models.process import Progress, silent
from mtp.models.trouble import NO_SPACE, plain


def fetch_from_hub(name: str, progress: Progress = silent) -> Path:
    """Brings a model of the Hugging Face hub into the hub's own cache; returns its folder.

    What is there already is used as it is, without asking the hub, so that a model stays the
    same. Only safetensors, configuration and tokenizer are taken. Raises FetchError.
    """
    import huggingface_hub as hub
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError
    from huggingface_hub.errors import RepositoryNotFoundError as NoRepository

    wanted = ["*.json", "*.txt", "*.model", "*.jinja", "*.py", "model*.safetensors"]
    if catalog.is_ready(name):
        config = hub.try_to_load_from_cache(name, "config.json")
        return Path(str(config)).parent
    progress(f"Downloading {name} from the Hugging Face hub", None)
    try:
        with _quiet_hub():
            return Path(hub.snapshot_download(name, allow_patterns=wanted))
    except GatedRepoError as error:
        raise FetchError(
            f"The hub gives {name} only to accounts that accepted its terms: accept them there and"
            " log in with `hf auth login`, then try again."
        ) from error
    except NoRepository as error:
        raise FetchError(
            f"The Hugging Face hub has no public model {name}, and there is no local folder of"
            " that name: check the spelling."
        ) from error
    except LocalEntryNotFoundError as error:
        raise FetchError(
            f"{name} is not here yet and the Hugging Face hub did not answer: check the network,"
            " then try again, or give a local folder."
        ) from error
    except OSError as error:
        if error.errno in NO_SPACE:
            raise FetchError(
                f"The disk filled up while {name} was downloading: free some space, then try"
                " again; what came is kept and the rest follows."
            ) from error
        raise _hub_trouble(name, error) from error
    except Exception as error:  # the hub's client raises its transport's own errors
        raise _hub_trouble(name, error) from error


def _hub_trouble(name: str, error: Exception) -> FetchError:
    first = str(error).strip().splitlines()[:1] or [type(error).__name__]
    return FetchError(
        f"{name} could not be downloaded from the Hugging Face hub ({plain(first[0])}): check the"
        " network, then try again; what came is kept and the rest follows."
    )


@contextmanager
def _quiet_hub() -> Iterator[None]:
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    were_off = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            enable_progress_bars()
