"""The circuits' table measures every head on the shelf, each told from the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mtp.bench.circuits import circuit_decoders
from mtp.bench.decoders import parse_decoder
from mtp.circuits.head_files import save_head
from mtp.circuits.heads import CircuitHead, HeadConfig
from mtp.drafters.options import settle_options
from mtp.errors import InputError
from mtp.models.draft_vocabulary import DraftVocabulary


def put(shelf: Path, circuit: str, window: int, rank: int, lora: int = 0) -> None:
    config = HeadConfig(circuit, window, rank, 4, 5, 5, "mine", code=2, basis=2, lora=lora)  # type: ignore[arg-type]
    head = CircuitHead(config, torch.zeros(5, 4), DraftVocabulary(np.arange(5), 5))
    save_head(head, shelf / f"{circuit}-{window}-{rank}-{lora}")


def test_every_head_is_measured_under_both_verifications(tmp_path: Path) -> None:
    for one in (("ff", 4, 1), ("btree", 4, 2), ("btree", 4, 3), ("btree", 4, 2, 1)):
        put(tmp_path, *one)
    found = circuit_decoders("mine", "tiny", tmp_path)
    assert found[:2] == ["ar", "hf"] and len(set(found)) == len(found) == 2 + 2 * 6
    assert "mtpc-ff[window=4,verification=rejection]" in found
    assert "mtpc-btree[window=4,rank=3,tree=best,budget=16,verification=coupled]" in found
    assert "mtpc-btree[window=4,lora=1,verification=coupled]" in found
    for label in found[2:]:
        decoder = parse_decoder(label)
        settle_options(decoder.name, decoder.options)  # all options are known
    with pytest.raises(InputError, match="no circuit heads for tiny"):
        circuit_decoders("others", "tiny", tmp_path)
