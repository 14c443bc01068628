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
from mtp.train.scaling import Recipe, Size, accepted_per_call, build, sizes_from, train
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
    train(tmp_path / "run", *given, replace(RECIPE, steps=12), measure_every=1)
    train(tmp_path / "run", *given, RECIPE, measure_every=1)
    curve = read_curve(tmp_path / "run")
    assert [line["step"] for line in curve] == list(range(1, 25))
    assert sum(line["loss"] for line in curve[-5:]) < sum(line["loss"] for line in curve[:5])
    assert all(0 <= line[name] <= 4 for line in curve for name in ("accepted", "unread"))


class Seer:
    """A drafter that foresees the texts' own tokens, moved on by `shift`."""

    def __init__(self, shift):
        self.shift = shift

    def text(self, ids):
        return ids

    def rows(self, ids, windows, u):
        wanted = ids.gather(1, (windows.place + 1).clamp(max=ids.shape[1] - 1)).clamp(min=0)
        return fn.one_hot((wanted + self.shift) % 264, 264).float()


def test_a_call_accepts_what_is_right_in_a_row(texts, verifier):  # noqa: F811
    """With an oracle every call accepts `length` drafts, up to a place that no noise can pick and
    but for a text's end; of a drafter that is never right nothing stands.
    """
    held_out = [text.cut(80) for text in texts[0][:6]]
    survey = Survey(verifier.backbone, held_out, RECIPE.sampling)
    accepted, calls = 0, 0
    for text in held_out:
        places = survey.read([text]).places[0].tolist()
        root, end = text.answer - 1, len(text.ids) - 1
        while root < end:
            right = 0
            while right < RECIPE.length and root + right < len(places) and places[root + right]:
                right += 1
            accepted, calls = accepted + min(right, end - root), calls + 1
            root += min(right + 1, end - root)
    found = accepted_per_call(Seer(0), survey, held_out, RECIPE)
    assert found == pytest.approx(accepted / calls) and found > 2
    assert accepted_per_call(Seer(1), survey, held_out, RECIPE) == 0


def test_noise_of_another_draw_is_read_where_asked(texts, verifier):  # noqa: F811
    """A drafter that is right only where its noise lies in the token's interval."""
    held_out = [text.cut(80) for text in texts[0][:6]]
    survey = Survey(verifier.backbone, held_out, RECIPE.sampling)

    class Reader(Seer):
        def rows(self, ids, windows, u):
            found = next(one for one in reads if one.ids.shape == ids.shape)
            low, high = (end.gather(1, windows.place) for end in (found.low, found.high))
            logits = super().rows(ids, windows, u)
            return torch.where(((low <= u) & (u < high))[:, :, None], logits, logits.roll(1, 2))

    reads = [
        survey.read(held_out[start : start + scaling.MEASURED])
        for start in range(0, len(held_out), scaling.MEASURED)
    ]
    own = accepted_per_call(Reader(0), survey, held_out, RECIPE)
    assert own == accepted_per_call(Seer(0), survey, held_out, RECIPE)
    assert accepted_per_call(Reader(0), survey, held_out, RECIPE, another=True) < 0.8 * own


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
    assert sizes_from("64/1/1, 256/4/4@0.002") == [Size(64, 1, 1), Size(256, 4, 4, 0.002)]
    for wrong in ("64", "64/1", "a/b/c", "64/0/1", "65/1/2", "", "64/1/1@x", "64/1/1,64/1/1@1"):
        with pytest.raises(InputError):
            sizes_from(wrong)
    sizes = (Trained("64/1/1", 66_000, (Point(10, 0.5, 0.1, 0.1), Point(20, 1.0, 0.3, 0.2))),)
    study = Scaling("byte", "sha", 0.7, 8, 40, {}, sizes)
    assert Scaling.from_json(study.to_json()) == study and sizes[0].last.accepted == 0.3
    for content in ("", "{}", study.to_json().replace('"version": 1', '"version": 2')):
        with pytest.raises(TraceError):
            Scaling.from_json(content)
