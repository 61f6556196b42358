#!/usr/bin/env python3
"""Records GGUF files, decoded blocks and SentencePiece ids in tests/data/formats and
tests/data/tokenizers/umt5-spiece.

The gguf package writes the files and decodes the blocks; the sentencepiece package trains the model
and encodes the texts.
  tools/format_oracle.py
Needs: gguf (recorded with 0.19.0), numpy, sentencepiece, ml_dtypes. The output depends only on the
versions of these packages.
"""

import io
import json
import pathlib
import random
import struct

import gguf
import ml_dtypes
import numpy as np
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as sp_model
from tokenizer_texts import fuzz_string

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = ROOT / "tests/data"
Q = gguf.GGMLQuantizationType
BLOCKS = [
    Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K,
]  # fmt: skip
# Bytes at which a block of each type has an f16 scale.
SCALES = {
    Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q8_0: [0],
    Q.Q2_K: [80, 82], Q.Q3_K: [108], Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208],
}  # fmt: skip
DTYPES = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "F16": np.float16, "U8": np.uint8}


def random_blocks(rng, kind, count, largest=1.0):
    """Blocks of random bytes whose scales are finite f16 numbers, subnormal ones among them."""
    blocks = rng.integers(0, 256, (count, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for at in SCALES[kind]:
        scales = (rng.standard_normal(count) * largest * 10.0 ** -rng.integers(0, 7, count)).astype(
            np.float16
        )
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    return blocks


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, array in tensors.items():
        kind = next(k for k, t in DTYPES.items() if array.dtype == t)
        raw = array.tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": span}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            array = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]])
            tensors[name] = array.reshape(entry["shape"])
    return tensors


def record_blocks():
    rng = np.random.default_rng(1)
    tensors = {}
    for kind in BLOCKS:
        blocks = random_blocks(rng, kind, 6)
        tensors[f"{kind.name}.blocks"] = blocks
        tensors[f"{kind.name}.values"] = gguf.quants.dequantize(blocks, kind)
    write_safetensors(DATA / "formats/blocks.safetensors", tensors)


def add_tokenizer(writer, spiece, size):
    """The keys that llama.cpp's convert_hf_to_gguf.py writes for a unigram model."""
    model = sp_model.ModelProto()
    model.ParseFromString(spiece.read_bytes())
    tokens = [f"[PAD{i}]".encode() for i in range(size)]
    scores, types = [-10000.0] * size, [5] * size
    for i, piece in enumerate(model.pieces):
        tokens[i], scores[i], types[i] = piece.piece.encode(), piece.score, int(piece.type)
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_add_space_prefix(model.normalizer_spec.add_dummy_prefix)
    writer.add_remove_extra_whitespaces(model.normalizer_spec.remove_extra_whitespaces)
    writer.add_precompiled_charsmap(model.normalizer_spec.precompiled_charsmap)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_add_eos_token(True)


def record_model():
    """Writes a T5 encoder of golden/cases as a GGUF file, and the values that the gguf package
    decodes from this file as a safetensors checkpoint."""
    source = ROOT / "tests/golden/cases/t5-encoder"
    config = json.loads((source / "config.json").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5ENCODER, config["num_layers"])
    path = DATA / "formats/t5-encoder.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "t5encoder")
    writer.add_name("golden t5-encoder")
    writer.add_context_length(512)
    writer.add_embedding_length(config["d_model"])
    writer.add_feed_forward_length(config["d_ff"])
    writer.add_block_count(config["num_layers"])
    writer.add_head_count(config["num_heads"])
    writer.add_key_length(config["d_kv"])
    writer.add_value_length(config["d_kv"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_relative_attn_buckets_count(config["relative_attention_num_buckets"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    add_tokenizer(writer, DATA / "tokenizers/sp-unigram-nmt_nfkc/spiece.model", 640)
    rng = np.random.default_rng(2)
    narrow = iter([Q.Q8_0, Q.Q4_0, Q.Q5_1, Q.F16, Q.Q5_0, Q.Q4_1, Q.BF16] * 4)
    wide = iter([Q.Q6_K, Q.Q4_K, Q.Q5_K, Q.Q3_K, Q.Q2_K])
    decoded = {}
    for name, array in read_safetensors(source / "model.safetensors").items():
        values = array.astype(np.float32)
        kind = Q.F32
        if values.shape[-1] == 256:
            # gguf decodes these formats, but does not encode them.
            kind = next(wide)
            stored = random_blocks(rng, kind, values.shape[0], 1e-3)
        elif values.ndim == 2 and values.shape[-1] % 32 == 0:
            kind = Q.Q8_0 if name == "shared.weight" else next(narrow)
            stored = gguf.quants.quantize(values, kind)
        if kind == Q.F32:
            writer.add_tensor(names.get_name(name, (".weight",)), values)
            decoded[name] = values
            continue
        raw = kind if kind != Q.F16 else None
        writer.add_tensor(names.get_name(name, (".weight",)), stored, raw_dtype=raw)
        decoded[name] = gguf.quants.dequantize(stored, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_safetensors(DATA / "formats/t5-encoder/model.safetensors", decoded)
    kept = [
        "architectures", "model_type", "vocab_size", "d_model", "d_kv", "d_ff", "num_layers",
        "num_heads", "relative_attention_num_buckets", "feed_forward_proj", "layer_norm_epsilon",
        "eos_token_id", "pad_token_id",
    ]  # fmt: skip
    text = json.dumps({name: config[name] for name in kept}, indent=2)
    (DATA / "formats/t5-encoder/config.json").write_text(text + "\n")


def record_sentencepiece():
    """Trains a tokenizer with UMT5's properties (<unk> is not piece 2, byte fallback, user-defined
    symbols) and records the ids of some texts."""
    folder = DATA / "tokenizers/umt5-spiece"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.loads(line)["t"]
        for line in (DATA / "tokenizers/t5/cases.jsonl").read_text().split("\n")
        if line
    ]
    trained = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in lines if line.strip()] * 4),
        model_writer=trained,
        model_type="unigram",
        vocab_size=1200,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        byte_fallback=True,
        user_defined_symbols=["<x_0>", "<x_1>", "ab"],
        normalization_rule_name="nmt_nfkc",
        num_threads=1,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "spiece.model").write_bytes(trained.getvalue())
    (folder / "config.json").write_text('{"model_type": "umt5"}\n')
    processor = spm.SentencePieceProcessor(model_proto=trained.getvalue())
    rng = random.Random(3)
    texts = lines[:60] + [fuzz_string(rng) for _ in range(60)]
    texts += [
        "",
        " ",
        "  a  b  ",
        "x<x_0>y <x_1>",
        "</s> <pad>",
        "\ta\n\nb\u3000c",
        "cab\U0001f600",
    ]
    with (folder / "cases.jsonl").open("w") as out:
        for text in texts:
            ids = processor.encode(text)
            # Skip texts with long runs of one piece: sentencepiece adds scores in f32, so rounding
            # decides between segmentations that have equal scores.
            if any(ids[i : i + 9] == ids[i : i + 1] * 9 for i in range(len(ids) - 8)):
                continue
            case = {"t": text, "i": ids + [1], "s": processor.decode(ids)}
            out.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    record_blocks()
    record_model()
    record_sentencepiece()
