"""Prompts made from nothing."""

import re
from collections import Counter

from mtp.train.prompts import KINDS, prompt


def test_a_prompt_is_a_function_of_seed_and_index():
    assert [prompt(3, i) for i in range(50)] == [prompt(3, i) for i in range(50)]
    assert [prompt(3, i) for i in range(50)] != [prompt(4, i) for i in range(50)]


def test_prompts_are_whole_sentences_of_many_kinds():
    made = [prompt(0, i) for i in range(2000)]
    for text in made:
        assert not re.search(r"[{}]", text)
        assert text[0].isupper() and text[-1] in ".?"
        assert not re.search(r"\b[Aa] [aeiou]", text)
    assert max(Counter(made).values()) < 30
    assert len(set(made)) > 1200


def test_shares_sum_to_one_and_every_template_can_be_filled():
    assert abs(sum(share for share, _ in KINDS.values()) - 1) < 1e-12
    beginnings = {prompt(1, i)[:9] for i in range(6000)}
    for _, templates in KINDS.values():
        for template in templates:
            start = template.split("{")[0][:9]
            assert any(made.startswith(start) for made in beginnings), template
