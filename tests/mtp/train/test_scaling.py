"""The scaling study: sizes trained, measured as decoding would, written and read back."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as fn

from mtp.errors import InputError, TraceError
from mtp.records.scaling import Point, Scaling, Trained
from mtp.train import scaling
from mtp.train.ptp_read import Survey, read
from mtp.train.run_folder import read_curve
from mtp.train.scaling import Recipe, build, sizes_from, tokens_per_call, train
from tests.mtp.train.test_ptp import data, texts, verifier  # noqa: F401 (fixtures)

RECIPE = Recipe(
    hidden=16,
    layers=1,
    heads=1,
    texts=4,
    context=80,
    rows=24,
    length=4,
    learning_rate=0.02,
    steps=24,
)


def test_a_run_learns_and_goes_on(texts, verifier, tmp_path):  # noqa: F811
    training, held_out = ([text.cut(80) for text in part] for part in texts)
    survey = Survey(verifier.backbone, [*training, *held_out], RECIPE.sampling)
    given = (survey, "base", training, held_out)
    train(tmp_path / "run", *given, replace(RECIPE, steps=12), save_every=0)
    train(tmp_path / "run", *given, RECIPE, save_every=0)
    curve = read_curve(tmp_path / "run")
    assert [line["step"] for line in curve] == list(range(1, 25))
    assert sum(line["loss"] for line in curve[-5:]) < sum(line["loss"] for line in curve[:5])
    assert all(1 <= line["tokens_per_call"] <= 5 for line in curve)


def test_a_call_brings_what_is_right_in_a_row_and_one_more(texts, verifier, monkeypatch):  # noqa: F811
    """With an oracle every call brings length + 1 tokens, but for a text's end; a drafter that is
    never right brings 1.
    """
    held_out = [text.cut(80) for text in texts[0][:6]]
    drafter = build(RECIPE)
    survey = Survey(verifier.backbone, held_out, RECIPE.sampling)

    def foresees(shift):
        def right(_drafter, found, roots, _shares, recipe):
            windows = scaling.windows_behind(found, roots[:, None], recipe.length)
            wanted = found.ids.gather(1, (windows.place + 1).clamp(max=found.ids.shape[1] - 1))
            logits = fn.one_hot((wanted.clamp(min=0) + shift) % 264, 264).float()
            hits = (logits.argmax(-1) == wanted) & windows.counted
            return hits.long().cumprod(1).sum(1)

        return right

    monkeypatch.setattr(scaling, "_right", foresees(0))
    lengths = [len(text.ids) - text.answer for text in held_out]
    calls = sum(-(-length // 5) for length in lengths)
    oracle = tokens_per_call(drafter, survey, held_out, RECIPE)
    assert oracle == pytest.approx(sum(lengths) / calls, rel=0.1)  # places no noise can pick
    monkeypatch.setattr(scaling, "_right", foresees(1))
    assert tokens_per_call(drafter, survey, held_out, RECIPE) == 1


def test_rows_are_a_forward_of_text_and_noise(texts, verifier):  # noqa: F811
    """The packed window gives what the same rows behind the same tokens give alone."""
    drafter = build(RECIPE)
    text = texts[0][0].cut(60)
    found = read(verifier.backbone, [text], RECIPE.sampling)
    roots = torch.tensor([[text.answer, text.answer + 5]])
    windows = scaling.windows_behind(found, roots, 4)
    u = torch.rand(1, 8, dtype=torch.float64)
    with torch.no_grad():
        together = drafter.rows(drafter.text(found.ids), windows, u)[0, 4:]
        root = text.answer + 5
        ids = torch.from_numpy(text.ids[: root + 1])[None]
        embeds = torch.cat(
            [drafter.model.get_input_embeddings()(ids), drafter.noise(u[:, 4:])], dim=1
        )
        places = torch.cat([torch.arange(root + 1), root + torch.arange(4)])[None]
        alone = drafter.model(inputs_embeds=embeds, position_ids=places).logits[0, root + 1 :]
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_sizes_and_records(tmp_path):
    assert sizes_from("64/1/1, 256/4/4") == [(64, 1, 1), (256, 4, 4)]
    for wrong in ("64", "64/1", "a/b/c", "64/0/1", "65/1/2", ""):
        with pytest.raises(InputError):
            sizes_from(wrong)
    sizes = (Trained("64/1/1", 66_000, (Point(10, 0.5, 1.1), Point(20, 1.0, 1.3))),)
    study = Scaling("byte", "sha", 0.7, 8, 40, {}, sizes)
    assert Scaling.from_json(study.to_json()) == study and sizes[0].tokens_per_call == 1.3
    for content in ("", "{}", study.to_json().replace('"version": 1', '"version": 2')):
        with pytest.raises(TraceError):
            Scaling.from_json(content)
