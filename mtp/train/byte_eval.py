"""Bits per byte and entropy of a byte model on documents it has not seen."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtp.train.byte_data import IGNORED, Documents, answer_start
from mtp.train.byte_tokenizer import PAD_ID

ROWS = 8  # documents a forward


@dataclass(frozen=True)
class HeldOutBits:
    """Means over held-out bytes, in bits a byte.

    `answers`: cross-entropy of the answers (their end token included), given the prompt.
    `prompts`: the same of the prompts. `entropy`: of the model's own next-byte distribution at
    temperature 1 in the answers, `entropy_07` at temperature 0.7. `answer_bytes`: how many.
    Documents count up to the context length.
    """

    answers: float
    prompts: float
    entropy: float
    entropy_07: float
    answer_bytes: int


@torch.inference_mode()
def held_out_bits(model: PreTrainedModel, documents: Documents, context: int) -> HeldOutBits:
    """Runs each document from its start, cut after `context` tokens."""
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64)
    counts = torch.zeros(2, dtype=torch.int64)
    order = sorted(range(len(documents)), key=lambda i: len(documents.document(i)))
    for start in range(0, len(order), ROWS):
        chosen = order[start : start + ROWS]
        inputs, labels, in_answer = _batch(documents, chosen, context)
        logits = model(input_ids=inputs.to(model.device), use_cache=False).logits.float().cpu()
        log_p = logits.log_softmax(dim=-1)  # (B, T, V)
        surprise = -log_p.gather(-1, labels.clamp_min(0)[..., None])[..., 0]  # (B, T)
        in_prompt = ~in_answer & (labels != IGNORED)
        parts = [
            surprise[in_answer],
            surprise[in_prompt],
            _entropy(log_p)[in_answer],
            _entropy((logits / 0.7).log_softmax(dim=-1))[in_answer],
        ]
        sums += torch.stack([part.double().sum() for part in parts])
        counts += torch.stack([in_answer.sum(), in_prompt.sum()])
    answers, prompts = counts.tolist()
    bits = (sums / math.log(2)).tolist()
    return HeldOutBits(
        bits[0] / answers, bits[1] / max(1, prompts), bits[2] / answers, bits[3] / answers, answers
    )


def _entropy(log_p: Tensor) -> Tensor:
    """Entropy in nats (B, T) of distributions (B, T, V)."""
    return -(log_p.exp() * log_p).sum(dim=-1)


def _batch(documents: Documents, chosen: list[int], context: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels and whether a label is of the answer, (B, T) each, padded at the end."""
    parts = [documents.document(i)[: context + 1] for i in chosen]
    longest = max(len(part) for part in parts) - 1
    inputs = torch.full((len(parts), longest), PAD_ID, dtype=torch.long)
    labels = torch.full((len(parts), longest), IGNORED, dtype=torch.long)
    in_answer = torch.zeros((len(parts), longest), dtype=torch.bool)
    for row, part in enumerate(parts):
        tokens = torch.from_numpy(part.astype("int64"))
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        labels[row, : len(tokens) - 1] = tokens[1:]
        in_answer[row, answer_start(part) - 1 : len(tokens) - 1] = True
    return inputs, labels, in_answer
