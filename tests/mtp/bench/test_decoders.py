"""Decoders written with options: how they are read, and that each is measured with its own."""

import pytest

from mtp.bench.decoders import parse_decoder, split_decoders
from mtp.bench.measure import Plan, check_plan, measure
from mtp.bench.prompts import Prompt
from mtp.errors import InputError
from mtp.models.backbone import Backbone
from mtp.models.verifier import Verifier
from mtp.records.bench import tabulate
from mtp.records.settings import Settings

BASE = Settings(prompt="-", drafter="ar", mode="raw", max_new_tokens=12)


def test_a_list_is_split_outside_brackets():
    assert split_decoders("ar, esp[masks=1,budget=30],pld") == [
        "ar",
        "esp[masks=1,budget=30]",
        "pld",
    ]
    assert split_decoders(" , ") == []


def test_options_and_verification_are_read():
    found = parse_decoder("pld[n=2, verification=rejection]")
    assert (found.name, found.options, found.verification) == ("pld", {"n": "2"}, "rejection")
    assert parse_decoder("esp+pld[budget=9]").name == "esp+pld"


@pytest.mark.parametrize("label", ["pld[n]", "pld[n=2", "[n=2]", "pld]n=2", "", "pld[=2]"])
def test_other_forms_are_refused(label):
    with pytest.raises(InputError, match="is not a decoder; write a name such as ar"):
        parse_decoder(label)


def plan(*decoders):
    return Plan([Prompt("w1 w2 w3 w1 w2 w3 w1 w2")], decoders, {}, BASE)


def test_a_plan_is_checked():
    check_plan(plan("pld[n=2]", "pld[n=3]"))
    for decoders, said in (
        (("pld[n=99]",), "it can be from 1 to 16"),
        (("hf[n=2]",), "hf has no options"),
        (("hf[verification=rejection]",), "hf verifies in its own way"),
        (("pld[verification=none]",), "can be coupled or rejection"),
    ):
        with pytest.raises(InputError, match=said):
            check_plan(plan(*decoders))


def test_each_is_measured_with_its_own(tiny, tiny_vocabulary):
    verifier = Verifier("tiny", "base", Backbone(tiny("llama")), tiny_vocabulary)
    labels = ("ar", "pld[budget=1]", "pld[n=1,budget=9]", "pld[verification=rejection]")
    rows = list(measure(verifier, plan(*labels)))
    by_label = {row.decoder: row for row in rows}
    assert tuple(by_label) == labels
    assert by_label["pld[budget=1]"].ids == by_label["ar"].ids
    assert by_label["pld[verification=rejection]"].ids != by_label["ar"].ids
    per_call = {label: row.rows / row.verifier_calls for label, row in by_label.items()}
    assert per_call["ar"] == 1 < per_call["pld[budget=1]"] <= 2
    drafted = {label: row.drafted / row.verifier_calls for label, row in by_label.items()}
    assert drafted["pld[n=1,budget=9]"] > drafted["pld[budget=1]"] > 0
    for line in tabulate(rows, labels):
        row = by_label[line.decoder]
        assert line.draft_ms == pytest.approx(1000 * row.seconds_draft / row.verifier_calls)
        assert line.verify_ms > 0
