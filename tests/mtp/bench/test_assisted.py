"""`transformers`' assisted generation as a baseline: a draft model is asked for, and used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mtp.bench.measure import Plan, check_plan, measure
from mtp.bench.prompts import Prompt
from mtp.errors import InputError
from mtp.models.backbone import Backbone
from mtp.models.verifier import Verifier
from mtp.models.vocabulary import Vocabulary
from mtp.records.bench import tabulate
from mtp.records.settings import Settings


def plan(options: Mapping[str, Mapping[str, Any]], decoder: str = "hf-assisted") -> Plan:
    base = Settings(prompt="-", mode="raw", max_new_tokens=8, temperature=0.0)
    return Plan([Prompt("w1 w2 w3 w1 w2")], ["ar", decoder], options, base)


@pytest.mark.parametrize(
    ("options", "decoder", "sentence"),
    [
        ({}, "hf-assisted", "needs a draft model of the same vocabulary: --option hf-assisted.mod"),
        ({"hf-assisted": {"model": "a", "n": 1}}, "hf-assisted", "no option 'n'"),
        ({"hf-pld": {"n": 1}}, "hf-pld", "hf-pld has no options."),
    ],
)
def test_options_are_checked_first(
    options: Mapping[str, Mapping[str, Any]], decoder: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        check_plan(plan(options, decoder))


def test_assisted_generation_writes_the_same_greedy_text(
    tiny: Callable[[str], PreTrainedModel], tmp_path: Path
) -> None:
    table = {f"w{token}": token for token in range(40)}
    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(table, unk_token="w0")), pad_token="w0"
    )
    words.backend_tokenizer.pre_tokenizer = Whitespace()
    tiny("qwen3").save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    verifier = Verifier("tiny", "", Backbone(tiny("llama")), Vocabulary(words))
    named = f"hf-assisted[model={tmp_path},length=2]"  # a row is called by what was written
    for asked in (plan({"hf-assisted": {"model": str(tmp_path)}}), plan({}, named)):
        rows = list(measure(verifier, asked))
        assert [row.decoder for row in rows] == asked.decoders
        assert rows[0].ids == rows[1].ids
        assert len(rows[1].ids) == 8
        assert [line.decoder for line in tabulate(rows, asked.decoders)] == asked.decoders
        assert not list(measure(verifier, asked, rows))  # all is there
