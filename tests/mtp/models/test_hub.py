"""Fetching from the hub: one that does not answer, and one without the model."""

import os
import subprocess
import sys
from pathlib import Path

from mtp.models import catalog


def hub(url: str, home: Path) -> str:
    """What a fetch of a hub model says in a process of its own that asks the hub at `url`."""
    code = (
        "from mtp.errors import FetchError\nfrom mtp.models.fetch import fetch\n"
        "try: fetch('owner/name')\nexcept FetchError as error: print(error)"
    )
    environment = os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=catalog.REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_hub_that_does_not_answer_and_one_without_the_model(index, tmp_path):
    assert "did not answer" in hub("http://127.0.0.1:9", tmp_path)
    index.manner = "lost"
    said = hub(index.url.removesuffix("/simple/"), tmp_path)
    assert "owner/name" in said and "127.0.0.1" not in said
