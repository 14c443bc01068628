"""The byte model's tokenizer: a token is a byte, its id the byte's value, and a few turn marks."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|end|>"  # closes a turn; generation stops at it
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
PAD = "<|pad|>"
# Ids 256...263. The last four are not used: 264 rows keep the vocabulary a multiple of 8.
SPECIALS = [END, USER, ASSISTANT, PAD, *[f"<|unused_{i}|>" for i in range(4)]]
END_ID, USER_ID, ASSISTANT_ID, PAD_ID = 256, 257, 258, 259
VOCABULARY = 256 + len(SPECIALS)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['user', 'assistant'] %}"
    "{{ raise_exception('The byte model knows turns of user and assistant only.') }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """The printable character by which a byte-level tokenizer writes each byte value 0...255.

    The table of GPT-2 (Radford et al. 2019): printable Latin-1 stands for itself, the others in
    order for the characters from 256 on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def build_tokenizer(model_max_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer that any `AutoTokenizer` loads: 256 bytes with id = value, then `SPECIALS`."""
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in SPECIALS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=[mark for mark in SPECIALS if mark not in (END, PAD)],
        clean_up_tokenization_spaces=False,
        model_max_length=model_max_length,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
