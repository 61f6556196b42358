"""Writes a model directory of the shape of a T5 with random weights, for measurements.
Needs only the standard library and writes the same bytes every time.

It has no tokenizer: requests carry token ids.
usage: random_t5.py DIR [t5-small|t5-base|t5-xl], or `with random_t5.directory() as path:`
"""

import array
import contextlib
import dataclasses
import json
import math
import pathlib
import random
import sys
import tempfile

VOCAB, BUCKETS, D_KV = 32128, 32, 64


@dataclasses.dataclass(frozen=True)
class Shape:
    """Encoder and decoder have `layers` layers each."""

    d_model: int
    d_ff: int
    layers: int
    heads: int

    @property
    def inner(self) -> int:
        return self.heads * D_KV


# t5-xl: the sizes of XL, but feed-forward layers without gates.
SHAPES = {
    "t5-small": Shape(512, 2048, 6, 8),
    "t5-base": Shape(768, 3072, 12, 12),
    "t5-xl": Shape(2048, 5120, 24, 32),
}


def config(shape: Shape) -> dict:
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "d_model": shape.d_model,
        "d_kv": D_KV,
        "d_ff": shape.d_ff,
        "num_layers": shape.layers,
        "num_decoder_layers": shape.layers,
        "num_heads": shape.heads,
        "vocab_size": VOCAB,
        "relative_attention_num_buckets": BUCKETS,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "relu",
        "layer_norm_epsilon": 1e-6,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


def tensors(shape: Shape):
    """Yields (name, shape, standard deviation) of every tensor. The standard deviation is that of
    Hugging Face's initialisation; 0: all values are 1."""
    d_model, d_ff, inner = shape.d_model, shape.d_ff, shape.inner
    yield "shared.weight", (VOCAB, d_model), 1.0

    def attention(prefix, biased):
        for matrix, size, deviation in (
            ("q", (inner, d_model), (d_model * D_KV) ** -0.5),
            ("k", (inner, d_model), d_model**-0.5),
            ("v", (inner, d_model), d_model**-0.5),
            ("o", (d_model, inner), inner**-0.5),
        ):
            yield f"{prefix}.{matrix}.weight", size, deviation
        if biased:
            name = f"{prefix}.relative_attention_bias.weight"
            yield name, (BUCKETS, shape.heads), d_model**-0.5

    for stack, kinds in (
        ("encoder", ("SelfAttention",)),
        ("decoder", ("SelfAttention", "EncDecAttention")),
    ):
        for block in range(shape.layers):
            prefix = f"{stack}.block.{block}.layer"
            for layer, kind in enumerate(kinds):
                yield from attention(
                    f"{prefix}.{layer}.{kind}", block == 0 and kind == "SelfAttention"
                )
                yield f"{prefix}.{layer}.layer_norm.weight", (d_model,), 0
            dense = f"{prefix}.{len(kinds)}"
            yield f"{dense}.DenseReluDense.wi.weight", (d_ff, d_model), d_model**-0.5
            yield f"{dense}.DenseReluDense.wo.weight", (d_model, d_ff), d_ff**-0.5
            yield f"{dense}.layer_norm.weight", (d_model,), 0
        yield f"{stack}.final_layer_norm.weight", (d_model,), 0


def values(count: int, deviation: float, chance: random.Random) -> bytes:
    if deviation == 0:
        return array.array("f", [1.0]).tobytes() * count
    # Repeat a prime number of random values: no two rows of a matrix are equal, and generating 60
    # million values takes one second.
    period = [chance.gauss(0, deviation) for _ in range(min(count, 65521))]
    data = array.array("f", period).tobytes()
    return (data * (count * 4 // len(data) + 1))[: count * 4]


def write(directory: pathlib.Path, name: str = "t5-small") -> None:
    """Writes the model of the shape SHAPES[name]."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(SHAPES[name]), indent=1))
    model = list(tensors(SHAPES[name]))
    header, end = {}, 0
    for name, shape, _ in model:
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    chance = random.Random(1)
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape, deviation in model:
            file.write(values(math.prod(shape), deviation, chance))


@contextlib.contextmanager
def directory(name: str = "t5-small"):
    """Writes the model of the shape SHAPES[name] to a temporary directory and yields its path;
    removes the directory afterwards."""
    with tempfile.TemporaryDirectory(prefix="random_t5_") as path:
        write(pathlib.Path(path), name)
        yield path


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] and sys.argv[2] not in SHAPES:
        sys.exit(__doc__)
    write(pathlib.Path(sys.argv[1]), *sys.argv[2:])
