"""A tiny Llama as GGUF in a Python package, an index that serves it, and fetches that fail."""

import dataclasses
import hashlib
import http.server
import io
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from mtp.errors import FetchError
from mtp.models import catalog
from mtp.models.catalog import SMOLLM2, Entry, Package
from mtp.models.fetch import fetch_entry

VOCABULARY = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh", "ab", "Ġ"]
HIDDEN, LAYERS, MLP = 64, 2, 2048
MEMBER = "llm_tiny/tiny.gguf"
WHEEL = "llm_tiny-1.0-py3-none-any.whl"
NO_PIP = ("false",)  # would fail if it were asked


class Index(http.server.ThreadingHTTPServer):
    """A package index with one wheel. `manner`: whole, slow, breaks, lost."""

    daemon_threads = True

    def __init__(self, wheel: bytes):
        super().__init__(("127.0.0.1", 0), Page)
        self.wheel, self.manner, self.sent = wheel, "whole", 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}/simple/"


class Page(http.server.BaseHTTPRequestHandler):
    server: Index

    def do_GET(self):
        index = self.server
        if self.path.endswith(".whl"):
            self.send_wheel(index)
        elif index.manner == "lost":
            self.send_error(404)
        else:
            self.answer(f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode(), "text/html")

    def answer(self, body: bytes, kind: str):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_wheel(self, index: Index):
        index.sent += 1
        if index.manner == "whole":
            self.answer(index.wheel, "application/octet-stream")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(index.wheel)))
        self.end_headers()
        half = len(index.wheel) // 2
        try:
            for start in range(0, half, 100_000):
                self.wfile.write(index.wheel[start : min(start + 100_000, half)])
                time.sleep(0.05)
            if index.manner == "slow":
                time.sleep(20)
        except OSError:
            pass  # the other side was stopped
        self.close_connection = True

    def log_message(self, *_):
        pass


def write_gguf(path: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """A random Llama of 2 layers as float32 GGUF; returns its matrices by GGUF name."""
    import gguf

    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(HIDDEN // 4)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3, 3, 3] + [1] * (len(VOCABULARY) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    shapes = {"token_embd.weight": (len(VOCABULARY), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k.weight": (HIDDEN // 2, HIDDEN),
            f"blk.{layer}.attn_v.weight": (HIDDEN // 2, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (MLP, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (MLP, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, MLP),
        }
    arrays = {
        name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()
    }
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return arrays


def wheel_of(gguf: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(MEMBER, gguf)
        about = "llm_tiny-1.0.dist-info/"
        archive.writestr(
            about + "METADATA", "Metadata-Version: 2.1\nName: llm-tiny\nVersion: 1.0\n"
        )
        archive.writestr(
            about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(about + "RECORD", "")
    return stream.getvalue()


@dataclasses.dataclass
class Packaged:
    """A GGUF, its wheel, and the entry that stands for it."""

    arrays: dict[str, np.ndarray]
    gguf: bytes
    wheel: bytes
    entry: Entry

    def keep(self, cache: Path, gguf: bytes | None = None) -> Path:
        """Puts a download where a failed conversion leaves it."""
        path = cache / "downloads" / "tiny" / f"{self.entry.sha256}.gguf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.gguf if gguf is None else gguf)
        return path

    def roomy(self) -> Entry:
        """The entry, believing that it needs no space."""
        assert self.entry.package is not None
        return dataclasses.replace(
            self.entry, package=dataclasses.replace(self.entry.package, disk_bytes=0)
        )


def package_tiny(folder: Path) -> Packaged:
    """Writes the GGUF into the folder and packages it."""
    path = folder / "tiny.gguf"
    arrays = write_gguf(path)
    gguf = path.read_bytes()
    wheel = wheel_of(gguf)
    package = Package("llm-tiny==1.0", len(wheel), MEMBER, len(gguf), 50_000_000)
    entry = dataclasses.replace(
        SMOLLM2,
        name="tiny",
        short_title="Tiny",
        sha256=hashlib.sha256(gguf).hexdigest(),
        package=package,
    )
    return Packaged(arrays, gguf, wheel, entry)


class Log:
    """Keeps what `progress` was told; stops at `word`, from `fraction` on."""

    def __init__(self, word: str = "\0", fraction: float = 0.0):
        self.said: list[tuple[str, float | None]] = []
        self.word, self.fraction, self.stopped = word, fraction, 0.0

    def __call__(self, text: str, fraction: float | None) -> None:
        self.said.append((text, fraction))

    def stop(self) -> bool:
        hit = any(self.word in text and (part or 0) >= self.fraction for text, part in self.said)
        if hit and not self.stopped:
            self.stopped = time.monotonic()
        return hit


def fails(entry: Entry, kind: type[FetchError] = FetchError, **options) -> FetchError:
    """The error of a fetch that must fail, with nothing half-made left behind."""
    log = options.pop("log", Log())
    with pytest.raises(kind) as told:
        fetch_entry(entry, log, log.stop, **options)
    assert not catalog.entry_is_ready(entry)
    models = catalog.cache_folder() / "models"
    assert not models.exists() or list(models.iterdir()) == []
    downloads = catalog.cache_folder() / "downloads" / entry.name
    assert not list(downloads.glob("pip-*"))
    text = str(told.value)
    assert "://" not in text and "127.0.0.1" not in text and "\n" not in text
    assert "127.0.0.1" not in "".join(getattr(told.value, "__notes__", []))
    assert "127.0.0.1" not in "".join(text for text, _ in log.said)
    return told.value
