"""What of sampled completions is held out."""

from mtp.train.completions import Record, split


def records(*prompts: str) -> list[Record]:
    return [Record(prompt, [5, 2], "an answer") for prompt in prompts]


def test_the_last_lines_are_held_out_unless_their_prompt_is_trained_on():
    first = records(*(f"prompt {number}" for number in range(100)))
    ((kept, last),) = split([first])
    assert (kept, last) == (first[:98], first[98:])
    twice = records(*(f"prompt {number}" for number in range(99)), "prompt 7")
    ((kept, last),) = split([twice])
    assert (kept, last) == (twice[:98], twice[98:99])


def test_a_prompt_that_another_file_trains_on_is_not_held_out():
    one = records(*(f"prompt {number}" for number in range(100)))
    other = records("prompt 99", *(f"question {number}" for number in range(99)))
    (_, last), (kept, others) = split([one, other])
    assert last == one[98:99] and kept == other[:98] and others == other[98:]
