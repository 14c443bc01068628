"""Tokens as exact bytes and as text to show; prompts as token ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mtp.errors import InputError
from mtp.records.trace import Mode, TokenText

MAX_PROMPT_CHARACTERS = 100_000  # past any context this runs with; tokenising more takes seconds
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SENTENCEPIECE_SPACE = "\u2581"


class Vocabulary:
    """A tokenizer seen as a table of byte strings."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        eos = tokenizer.eos_token_id
        self.stop_ids = frozenset(stop_ids) | (frozenset() if eos is None else {int(eos)})
        self.special_ids = frozenset(int(token) for token in tokenizer.all_special_ids)

    @cached_property
    def _byte_level(self) -> bool:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return backend is not None and "ByteLevel" in str(backend.decoder)

    @cached_property
    def _sentencepiece(self) -> bool:
        vocabulary = self.tokenizer.get_vocab()
        return not self._byte_level and any(
            token.startswith(_SENTENCEPIECE_SPACE) for token in vocabulary
        )

    @cached_property
    def _added(self) -> dict[int, str]:
        return {
            int(token): added.content
            for token, added in self.tokenizer.added_tokens_decoder.items()
        }

    def bytes_of(self, token: int) -> bytes:
        """The exact bytes the token adds to the text."""
        if token in self._added:
            return self._added[token].encode("utf-8")
        piece = self.tokenizer.convert_ids_to_tokens(token)
        if not isinstance(piece, str):
            return f"\u2039{token}\u203a".encode()  # an id past the tokenizer's table
        if self._byte_level:
            table = _unicode_to_bytes()
            return bytes(table[char] for char in piece if char in table)
        if self._sentencepiece:
            byte = _BYTE_TOKEN.fullmatch(piece)
            if byte:
                return bytes([int(byte[1], 16)])
            return piece.replace(_SENTENCEPIECE_SPACE, " ").encode("utf-8")
        return str(self.tokenizer.decode([token])).encode("utf-8")

    def text_of(self, token: int) -> str:
        """How the token is shown: its text, or ‹e2 96› for bytes that are part of a character."""
        raw = self.bytes_of(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "\u2039" + raw.hex(" ") + "\u203a"

    def token_text(self, token: int) -> TokenText:
        """The token as records keep it."""
        return TokenText(token, self.text_of(token))

    @property
    def has_chat_template(self) -> bool:
        """Whether a chat prompt can be made."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def encode(self, prompt: str, mode: Mode) -> list[int]:
        """The prompt's token ids, as one user turn of the chat template or as raw text.

        Raises InputError for an empty or too long prompt, lone surrogates, or a missing template.
        """
        check_prompt(prompt)
        if mode == "chat":
            if not self.has_chat_template:
                raise InputError("This model has no chat template; use raw text instead of chat.")
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        else:
            ids = self.tokenizer(prompt, verbose=False)["input_ids"]
        if not ids:
            raise InputError("The prompt has no tokens in this model's vocabulary.")
        return [int(token) for token in ids]

    def encode_answer(self, answer: str) -> list[int]:
        """The token ids of an answer's beginning, behind an encoded prompt; none for an empty one.

        Raises InputError as `encode` does for what no model can take.
        """
        if not answer:
            return []
        check_text(answer)
        ids = self.tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"]
        return [int(token) for token in ids]


def check_prompt(prompt: str) -> None:
    """Raises InputError for a prompt no model can take."""
    if not prompt.strip():
        raise InputError("The prompt is empty. Write at least one word.")
    check_text(prompt)


def check_text(prompt: str) -> None:
    """Raises InputError for a text that is too long or holds what no text can."""
    if len(prompt) > MAX_PROMPT_CHARACTERS:
        raise InputError(
            f"The prompt has {len(prompt):,} characters; at most {MAX_PROMPT_CHARACTERS:,} "
            "are allowed."
        )
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"The prompt's character {error.start + 1} is a lone surrogate, half of a character. "
            "Remove it or paste the text again; any complete Unicode text is allowed."
        ) from error


@lru_cache(maxsize=1)
def _unicode_to_bytes() -> dict[str, int]:
    return {char: byte for byte, char in bytes_to_unicode().items()}
