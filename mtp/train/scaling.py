"""`train scaling`: noise-reading drafters of several sizes from scratch on one model's samples."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import DynamicCache, LlamaForCausalLM

from mtp.decode import software
from mtp.errors import InputError
from mtp.models.verifier import load_verifier
from mtp.ptp.embedding import EMBEDDINGS, NoiseEmbedding
from mtp.ptp.weights import spread_of
from mtp.records.scaling import Point, Scaling, Trained
from mtp.sampling import Sampling
from mtp.train.byte_recipe import Shape, build_model
from mtp.train.loop import Loop
from mtp.train.muon import optimizers_for
from mtp.train.ptp_read import Read, Survey
from mtp.train.ptp_recipe import check_corpus
from mtp.train.ptp_rows import Windows, draw_windows, noise_of, token_loss, windows_behind
from mtp.train.run_folder import RunFolder, read_curve
from mtp.train.schedule import Schedule
from mtp.train.texts import Text, batches, cut_all, read_texts

# Hidden, layers, heads, as the paper names them. At a narrow one's rate a wide one learns late.
SIZES = "64/1/1,96/2/2,128/2/2,192/3/3@0.0025"
HELD_OUT_SEED = 2**31
MEASURED = 16  # held-out texts a forward


@dataclass(frozen=True, kw_only=True)
class Recipe(Schedule):
    """How one drafter is trained: `rows` noise rows in each of `texts` completions a step."""

    hidden: int
    layers: int
    heads: int
    texts: int = 4
    context: int = 384
    rows: int = 256
    length: int = 8
    discount: float = 0.95
    learning_rate: float = 5e-3
    embedding: str = "quarter-cos"
    temperature: float = 0.7

    @property
    def shape(self) -> Shape:
        """Of the model, whose MLP is four times as wide as its states."""
        return Shape(self.hidden, self.layers, self.heads, 4 * self.hidden, self.context)

    @property
    def sampling(self) -> Sampling:
        """What the noise means."""
        return Sampling(self.temperature)


@dataclass(frozen=True)
class Drafter:
    """A model that reads tokens and noise with the same weights."""

    model: LlamaForCausalLM
    noise: NoiseEmbedding

    @property
    def size(self) -> int:
        """How many parameters it has."""
        return sum(p.numel() for p in [*self.model.parameters(), *self.noise.parameters()])

    def optimizers(self, recipe: Recipe) -> list[Optimizer]:
        """Muon for the layers' matrices, AdamW for the rest."""
        more = self.noise.parameters()
        return optimizers_for(self.model, recipe.learning_rate, 0.05, more)

    def text(self, ids: Tensor) -> DynamicCache:
        """Keys and values of texts (B, S), −1 behind an end."""
        cache = DynamicCache()
        self.model.model(input_ids=ids.clamp(min=0), cache=cache, use_cache=True)
        return cache

    def rows(self, cache: DynamicCache, windows: Windows, u: Tensor) -> Tensor:
        """Logits (B, N · L, V) of noise rows behind the texts; the cache is left as it was."""
        logits: Tensor = self.model(
            inputs_embeds=self.noise(u),
            position_ids=windows.place,
            attention_mask=windows.mask,
            cache=cache,
            use_cache=True,
        ).logits
        cache.crop(-u.shape[1])
        return logits


def build(recipe: Recipe) -> Drafter:
    """An untrained drafter, a function of the seed."""
    model = build_model(recipe.shape, recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    noise = NoiseEmbedding(recipe.embedding, recipe.hidden, spread_of(model), generator=generator)  # type: ignore[arg-type]
    return Drafter(model, noise)


def train(
    folder: Path,
    survey: Survey,
    base_sha256: str,
    training: Sequence[Text],
    held_out: Sequence[Text],
    recipe: Recipe,
    *,
    measure_every: int = 100,
    data: Sequence[Path] = (),
    report: Callable[[str], None] = lambda line: None,
) -> Drafter:
    """Trains one drafter in `folder`; goes on from the checkpoint that is there.

    survey: of all the texts, which are no longer than the recipe's context. measure_every: steps
    from one checkpoint and measurement to the next, so that sizes are compared after equal numbers
    of rows.
    """
    settings = dataclasses.asdict(recipe) | {"weights_sha256": base_sha256}
    drafter = build(recipe)
    loop = Loop(
        RunFolder(folder, settings, free=("minutes", "steps"), data=data),
        recipe,
        {"model": drafter.model, "noise": drafter.noise},
        drafter.optimizers(recipe),
        save_every=math.inf,
        rows=0,
    )
    rng = np.random.default_rng([recipe.seed, loop.progress.step])
    source = batches(training, rng, recipe.texts)
    for _ in loop:
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        found = survey.read(next(source))
        windows, noise = draw_windows(found, recipe.rows, recipe.length, generator)
        logits = drafter.rows(drafter.text(found.ids), windows, noise)
        loss = token_loss(found, windows, logits, recipe.discount)
        loop.update(loss, rows=int(windows.counted.sum()))
        if loop.due or loop.progress.step % measure_every == 0:
            stood = accepted_per_call(drafter, survey, held_out, recipe)
            unread = accepted_per_call(drafter, survey, held_out, recipe, another=True)
            line = loop.save({"accepted": stood, "unread": unread})
            report(
                f"{recipe.hidden}/{recipe.layers}/{recipe.heads}, step {line['step']}, "
                f"{line['seconds'] / 60:.1f} min, {line['rows'] / 1e6:.2f}M rows: loss "
                f"{line['loss']:.3f}, {stood:.2f} accepted per call held out, {unread:.2f} with "
                "another draw's noise"
            )
    return drafter


@torch.no_grad()
def accepted_per_call(
    drafter: Drafter, survey: Survey, texts: Sequence[Text], recipe: Recipe, another: bool = False
) -> float:
    """Drafts that stand per verifier call on held-out samples, whose noise is drawn in their
    intervals; with `another`, the rows read noise of another draw.

    Coupled decoding of just these texts: behind each root the drafter foresees `length` tokens;
    those right in a row stand, and the verifier adds one.
    """
    generator = torch.Generator().manual_seed(HELD_OUT_SEED)
    calls, accepted = 0, 0
    for start in range(0, len(texts), MEASURED):
        some = texts[start : start + MEASURED]
        found = survey.read(some)
        cache = drafter.text(found.ids)
        shares = torch.rand(found.ids.shape, generator=generator, dtype=torch.float64)
        roots = torch.tensor([text.answer - 1 for text in some])
        ends = torch.tensor([len(text.ids) - 1 for text in some])
        while bool((roots < ends).any()):
            active = roots < ends
            windows = windows_behind(
                found, roots.clamp(max=found.ids.shape[1] - 2)[:, None], recipe.length
            )
            noise = noise_of(found, windows, shares.gather(1, windows.place))
            if another:
                noise = torch.rand(noise.shape, generator=generator, dtype=noise.dtype)
            right = _right(drafter, cache, found, windows, noise)
            step = torch.minimum(right + 1, ends - roots)
            calls += int(active.sum())
            accepted += int(torch.minimum(right, ends - roots)[active].sum())
            roots = roots + torch.where(active, step, torch.zeros_like(step))
    return accepted / max(1, calls)


def _right(
    drafter: Drafter, cache: DynamicCache, found: Read, windows: Windows, noise: Tensor
) -> Tensor:
    """How many tokens right in a row (B,) the drafter foresees in one window a text, of which the
    cache holds keys and values.
    """
    logits = drafter.rows(cache, windows, noise)
    wanted = found.ids.gather(1, (windows.place + 1).clamp(max=found.ids.shape[1] - 1))
    hits = (logits.argmax(-1) == wanted) & windows.counted
    return hits.long().cumprod(1).sum(1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `train scaling`."""
    parser.add_argument("--model", default="byte", help="the model whose samples are learnt")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="its own completions")
    parser.add_argument("--folder", type=Path, required=True, help="of the runs, one a size")
    parser.add_argument("--sizes", default=SIZES, metavar="HIDDEN/LAYERS/HEADS[@RATE],…")
    parser.add_argument("--minutes", type=float, help="training time of each size")
    parser.add_argument("--steps", type=int, help="steps of each size")
    parser.add_argument("--embedding", choices=EMBEDDINGS, default=Recipe.embedding)
    for name in ("texts", "context", "rows", "length", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Recipe, name))
    for name in ("discount", "learning_rate", "temperature"):
        given = getattr(Recipe, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=given)
    parser.add_argument("--prompts", type=int, default=40, help="held-out completions measured")
    parser.add_argument(
        "--measure-every", type=int, default=100, help="steps from a checkpoint to the next"
    )
    parser.add_argument("--out", type=Path, help="where to write the study as JSON")


@dataclass(frozen=True)
class Size:
    """One of the study: its shape as the paper names it, and its learning rate, None for the
    study's.
    """

    hidden: int
    layers: int
    heads: int
    rate: float | None = None

    @property
    def label(self) -> str:
        """Hidden size, layers, heads."""
        return f"{self.hidden}/{self.layers}/{self.heads}"


def sizes_from(words: str) -> list[Size]:
    """The sizes named. Raises InputError for another form."""
    found: list[Size] = []
    for name in (part.strip() for part in words.split(",")):
        shape, given, rate = name.partition("@")
        parts = shape.split("/")
        try:
            if len(parts) != 3 or not all(part.isdecimal() for part in parts):
                raise ValueError
            hidden, layers, heads = map(int, parts)
            size = Size(hidden, layers, heads, float(rate) if given else None)
        except ValueError as error:
            raise InputError(
                f"A size is HIDDEN/LAYERS/HEADS, such as 64/1/1, or 64/1/1@0.002 with a learning "
                f"rate of its own; not {name[:40]!r}."
            ) from error
        Shape(size.hidden, size.layers, size.heads)
        if size.label in [one.label for one in found]:
            raise InputError(f"The size {size.label} is named twice.")
        found.append(size)
    return found


def run(args: argparse.Namespace) -> int:
    """Trains every size, smallest first, and writes the study; returns the exit status 0."""
    fields = {field.name for field in dataclasses.fields(Recipe)} - {"hidden", "layers", "heads"}
    given = {name: getattr(args, name) for name in fields}
    rate = given.pop("learning_rate")
    recipes = {
        size.label: Recipe(
            hidden=size.hidden,
            layers=size.layers,
            heads=size.heads,
            learning_rate=rate if size.rate is None else size.rate,
            **given,
        )
        for size in sizes_from(args.sizes)
    }
    sampling = Sampling(args.temperature)
    for name, value in (("measure every", args.measure_every), ("prompts", args.prompts)):
        if value < 1:
            raise InputError(f"The number given for {name} is {value}; it must be 1 or more.")
    if args.out is not None and args.out.is_dir():
        raise InputError(f"{args.out} is a folder; give a file to write.")
    verifier = load_verifier(args.model, None)
    check_corpus(args.data, verifier, sampling)
    training, held_out = (
        cut_all(texts, args.context) for texts in read_texts(args.data, verifier.vocabulary)
    )
    held_out = held_out[: args.prompts]
    survey = Survey(verifier.backbone, [*training, *held_out], sampling)
    trained = []
    for label, recipe in recipes.items():
        folder = args.folder / label.replace("/", "-")
        drafter = train(
            folder,
            survey,
            verifier.weights_sha256,
            training,
            held_out,
            recipe,
            measure_every=args.measure_every,
            data=args.data,
            report=lambda line: print(line, file=sys.stderr, flush=True),
        )
        points = tuple(
            Point(
                int(line["rows"]),
                round(line["seconds"] / 60, 2),
                round(line["accepted"], 4),
                round(line["unread"], 4),
            )
            for line in read_curve(folder)
        )
        trained.append(Trained(label, drafter.size, points))
    study = Scaling(
        model=verifier.name,
        weights_sha256=verifier.weights_sha256,
        temperature=args.temperature,
        length=args.length,
        prompts=len(held_out),
        software=software(),
        sizes=tuple(trained),
    )
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(study.to_json() + "\n", encoding="utf-8")
        print(args.out)
    return 0
