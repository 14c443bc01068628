"""Bytes as tokens, through the Auto classes."""

import pytest
from transformers import AutoTokenizer

from mtp.train.byte_data import encode
from mtp.train.byte_tokenizer import SPECIALS, VOCABULARY, build_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(1024).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_every_byte_of_any_text_is_a_token_with_its_value(tokenizer):
    characters = "".join(chr(c) for c in range(0, 0x2100)) + "世界 😀\u200d \U0010ffff"
    for text in [characters, "", " ", "  two  spaces \r\n\ttab , don't .", "e\u0301 é"]:
        ids = tokenizer(text)["input_ids"]
        assert ids == list(text.encode())
        assert tokenizer.decode(ids) == text


def test_specials_follow_the_bytes(tokenizer):
    assert len(tokenizer) == VOCABULARY == 264
    assert tokenizer.convert_tokens_to_ids(SPECIALS) == list(range(256, 264))
    assert tokenizer.eos_token_id == 256 and tokenizer.pad_token_id == 259
    assert tokenizer.decode([72, 105, 256], skip_special_tokens=True) == "Hi"


def test_the_template_writes_what_training_read(tokenizer):
    turns = [{"role": "user", "content": "Hé"}, {"role": "assistant", "content": "Yo"}]
    ids = tokenizer.apply_chat_template(turns, return_dict=True)["input_ids"]
    assert ids == encode("Hé", "Yo", ended=True)
    open_turn = tokenizer.apply_chat_template(
        turns[:1], add_generation_prompt=True, return_dict=True
    )
    assert open_turn["input_ids"] == encode("Hé", "", ended=False)


def test_other_roles_are_refused(tokenizer):
    with pytest.raises(Exception, match="user and assistant only"):
        tokenizer.apply_chat_template([{"role": "system", "content": "x"}])
