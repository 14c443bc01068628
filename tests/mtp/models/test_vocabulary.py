"""Tokens as exact bytes, parts of characters as ‹e2 96›, prompts as ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mtp.errors import InputError
from mtp.models.vocabulary import MAX_PROMPT_CHARACTERS, Vocabulary

TEXTS = {
    "plain": "The cat sat on the mat.",
    "spaces": "  two  spaces\n\n\ttabs\r\n and a no-break\u00a0one ",
    "emoji": "🙂👩‍👩‍👧‍👦🏳️‍🌈 ok 👍🏽",
    "right to left": "שלום עולם, مرحبا بالعالم",
    "Chinese, Japanese, Korean": "中文字符 日本語テキスト 한국어 문장",
    "html": "<script>alert('x')</script> <b>bold</b> &amp;",
    "blocks": "▁ ▂▃ █ ‹e2 96› ░",
    "combined": "é e\u0301 Å ﬁ ½ \u200b\ufeff",
    "rare": "𝕬𝖇 𓀀 \U0010ffff \x00\x7f",
    "code": "def f(x):\n    return x ** 2  # y\n",
}


@pytest.fixture(scope="session")
def byte_level() -> Vocabulary:
    """Byte-level BPE trained on a few words: most characters fall apart into bytes."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
    )
    tokenizer.train_from_iterator([TEXTS["plain"], TEXTS["code"], "中文 中文 中文"], trainer)
    return Vocabulary(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>"))


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> Vocabulary:
    return Vocabulary(AutoTokenizer.from_pretrained(smollm2_folder))


@pytest.fixture(params=["byte_level", pytest.param("smollm2", marks=pytest.mark.smollm2)])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    found: Vocabulary = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_bytes_of_all_tokens_are_the_text(vocabulary: Vocabulary, text: str) -> None:
    ids = vocabulary.encode(text, "raw")
    assert b"".join(vocabulary.bytes_of(token) for token in ids) == text.encode()


def test_a_part_of_a_character_is_shown_as_its_bytes(byte_level: Vocabulary) -> None:
    shown = [byte_level.text_of(token) for token in byte_level.encode("▁x🙂", "raw")]
    assert shown == ["‹e2›", "‹96›", "‹81›", "x", "‹f0›", "‹9f›", "‹99›", "‹82›"]


@pytest.mark.smollm2
def test_parts_of_characters_in_smollm2(smollm2: Vocabulary) -> None:
    shown = [smollm2.text_of(token) for token in smollm2.encode("▁▂", "raw")]
    assert shown == ["‹e2 96›", "‹81›", "‹e2 96›", "‹82›"]
    shown = [smollm2.text_of(token) for token in smollm2.encode("שלום", "raw")]
    assert shown == ["ש", "ל", "ו", "‹d7›", "‹9d›"]


def test_every_token_has_bytes_and_a_text(vocabulary: Vocabulary) -> None:
    size = min(len(vocabulary.tokenizer), 3000)
    for token in (*range(size), len(vocabulary.tokenizer) - 1):
        raw = vocabulary.bytes_of(token)
        text = vocabulary.text_of(token)
        assert raw and text
        assert vocabulary.token_text(token).text == text
        assert text.encode() == raw or text == f"‹{raw.hex(' ')}›"


def test_html_in_tokens_stays_text(byte_level: Vocabulary) -> None:
    ids = byte_level.encode("<script><b>", "raw")
    assert "".join(byte_level.text_of(token) for token in ids) == "<script><b>"


def test_an_id_past_the_table_is_shown_as_its_number(byte_level: Vocabulary) -> None:
    past = len(byte_level.tokenizer) + 7  # some models' logits are wider than their tokenizer
    assert byte_level.text_of(past) == f"‹{past}›"


def test_special_tokens_keep_their_text(byte_level: Vocabulary) -> None:
    end = byte_level.tokenizer.eos_token_id
    assert byte_level.stop_ids == {end} and end in byte_level.special_ids
    assert byte_level.text_of(end) == "<|end|>"
    more = Vocabulary(byte_level.tokenizer, stop_ids=[3, 4])
    assert more.stop_ids == {end, 3, 4}


def test_sentencepiece_tokens_have_their_spaces_and_bytes() -> None:
    pieces = ["<unk>", "▁", "▁the", "cat", "s", *(f"<0x{byte:02X}>" for byte in range(256))]
    model = BPE({piece: n for n, piece in enumerate(pieces)}, [], byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    vocabulary = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert vocabulary.bytes_of(2) == b" the"
    assert vocabulary.bytes_of(3) == b"cat"
    ids = [5 + byte for byte in "é█".encode()]
    assert b"".join(vocabulary.bytes_of(token) for token in ids) == "é█".encode()
    assert [vocabulary.text_of(token) for token in ids[:2]] == ["‹c3›", "‹a9›"]


# Prompts


@pytest.mark.parametrize("mode", ["raw", "chat"])
@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "The prompt is empty. Write at least one word."),
        (" \n\t ", "The prompt is empty. Write at least one word."),
        (
            "a" * 200_000,
            f"The prompt has 200,000 characters; at most {MAX_PROMPT_CHARACTERS:,} are allowed.",
        ),
        (
            "half \ud83d of a character",
            "The prompt's character 6 is a lone surrogate, half of a character. Remove it or paste "
            "the text again; any complete Unicode text is allowed.",
        ),
        (
            "\udc00",
            "The prompt's character 1 is a lone surrogate, half of a character. Remove it or paste "
            "the text again; any complete Unicode text is allowed.",
        ),
    ],
    ids=["empty", "blank", "long", "surrogate", "low surrogate"],
)
def test_a_prompt_no_model_can_take(
    byte_level: Vocabulary, prompt: str, said: str, mode: str
) -> None:
    with pytest.raises(InputError) as caught:
        byte_level.encode(prompt, mode)  # type: ignore[arg-type]
    assert str(caught.value) == said


def test_a_prompt_as_long_as_is_allowed(byte_level: Vocabulary) -> None:
    assert byte_level.encode("ab" * (MAX_PROMPT_CHARACTERS // 2), "raw")


def test_chat_needs_a_template(byte_level: Vocabulary) -> None:
    assert not byte_level.has_chat_template
    with pytest.raises(InputError, match="has no chat template; use raw text instead of chat"):
        byte_level.encode("hello", "chat")


def test_a_prompt_outside_the_vocabulary() -> None:
    tokenizer = Tokenizer(BPE({"a": 0, "b": 1}, []))  # no unknown token: the rest is dropped
    vocabulary = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert vocabulary.encode("a cab", "raw") == [0, 0, 1]
    with pytest.raises(InputError, match="has no tokens in this model's vocabulary"):
        vocabulary.encode("there", "raw")


def test_a_chat_prompt_is_one_user_turn() -> None:
    words = {"<turn>": 0, "<user>": 1, "<model>": 2, "hi": 3}
    tokenizer = Tokenizer(WordLevel(words, unk_token="hi"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(word) for word in list(words)[:3]])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<turn>")
    fast.chat_template = (
        "{{ bos_token }}{% for m in messages %}<user> {{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}<model>{% endif %}"
    )
    assert Vocabulary(fast).encode("hi hi", "chat") == [0, 1, 3, 3, 2]  # one beginning


@pytest.mark.smollm2
def test_the_chat_template_of_smollm2(smollm2: Vocabulary) -> None:
    ids = smollm2.encode("Tell me 🙂 <b>", "chat")
    text = b"".join(smollm2.bytes_of(token) for token in ids).decode()
    assert text.endswith("<|im_start|>user\nTell me 🙂 <b><|im_end|>\n<|im_start|>assistant\n")
    assert text.count("<|im_start|>assistant") == 1
    assert smollm2.tokenizer.eos_token_id in smollm2.stop_ids
