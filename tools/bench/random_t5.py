"""Writes a model directory of T5-small's shape with random weights, for measurements. Needs only
the standard library and writes the same bytes every time.

It has no tokenizer: requests carry token ids.
usage: random_t5.py DIR, or `with random_t5.directory() as path:`
"""

import array
import contextlib
import json
import math
import pathlib
import random
import sys
import tempfile

D_MODEL, INNER, D_FF, LAYERS, HEADS, VOCAB, BUCKETS = 512, 512, 2048, 6, 8, 32128, 32

CONFIG = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "is_encoder_decoder": True,
    "d_model": D_MODEL,
    "d_kv": INNER // HEADS,
    "d_ff": D_FF,
    "num_layers": LAYERS,
    "num_decoder_layers": LAYERS,
    "num_heads": HEADS,
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


def tensors():
    """Yields (name, shape, standard deviation) of every tensor. The standard deviation is that of
    Hugging Face's initialisation; 0: all values are 1."""
    yield "shared.weight", (VOCAB, D_MODEL), 1.0

    def attention(prefix, biased):
        for matrix, deviation in (
            ("q", (D_MODEL * INNER // HEADS) ** -0.5),
            ("k", D_MODEL**-0.5),
            ("v", D_MODEL**-0.5),
            ("o", INNER**-0.5),
        ):
            yield f"{prefix}.{matrix}.weight", (INNER, D_MODEL), deviation
        if biased:
            yield f"{prefix}.relative_attention_bias.weight", (BUCKETS, HEADS), D_MODEL**-0.5

    for stack, kinds in (
        ("encoder", ("SelfAttention",)),
        ("decoder", ("SelfAttention", "EncDecAttention")),
    ):
        for block in range(LAYERS):
            prefix = f"{stack}.block.{block}.layer"
            for layer, kind in enumerate(kinds):
                yield from attention(
                    f"{prefix}.{layer}.{kind}", block == 0 and kind == "SelfAttention"
                )
                yield f"{prefix}.{layer}.layer_norm.weight", (D_MODEL,), 0
            yield f"{prefix}.{len(kinds)}.DenseReluDense.wi.weight", (D_FF, D_MODEL), D_MODEL**-0.5
            yield f"{prefix}.{len(kinds)}.DenseReluDense.wo.weight", (D_MODEL, D_FF), D_FF**-0.5
            yield f"{prefix}.{len(kinds)}.layer_norm.weight", (D_MODEL,), 0
        yield f"{stack}.final_layer_norm.weight", (D_MODEL,), 0


def values(count: int, deviation: float, chance: random.Random) -> bytes:
    if deviation == 0:
        return array.array("f", [1.0]).tobytes() * count
    # Repeat a prime number of random values: no two rows of a matrix are equal, and generating 60
    # million values takes one second.
    period = [chance.gauss(0, deviation) for _ in range(min(count, 65521))]
    data = array.array("f", period).tobytes()
    return (data * (count * 4 // len(data) + 1))[: count * 4]


def write(directory: pathlib.Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=1))
    header, end = {}, 0
    for name, shape, _ in tensors():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    chance = random.Random(1)
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape, deviation in tensors():
            file.write(values(math.prod(shape), deviation, chance))


@contextlib.contextmanager
def directory():
    """Writes the model to a temporary directory and yields its path; removes the directory
    afterwards."""
    with tempfile.TemporaryDirectory(prefix="random_t5_") as path:
        write(pathlib.Path(path))
        yield path


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(pathlib.Path(sys.argv[1]))
